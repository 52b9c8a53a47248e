"""Kernels and plans on ARM, on a computer that is not: Debian's Python for arm64, run by qemu (`make test-arm`)."""
