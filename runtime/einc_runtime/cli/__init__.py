"""The command line `einc-runtime`, which `einc` builds on. Nothing else in `einc_runtime` prints or exits."""
