"""The time that a whole plan takes on a machine: the fluid model of exchange programs, extended to kernels.

It sees tasks as numbers only (`costs.py`), which are made from the plan file's records. So the compiler, which compares
device programs, and `einc explain`, which reads a plan file, use the same code.
"""
