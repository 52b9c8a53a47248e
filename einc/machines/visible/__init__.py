"""What this computer says of its GPUs: CUDA's driver, NVML, `nvidia-smi`, `rocm-smi` and the tree of PCIe devices.

Each module asks one of them and returns plain facts, or None where it is not there. `topologies.py` joins them to the
topology that a machine is built from.
"""
