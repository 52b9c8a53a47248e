"""How long a whole plan takes on a machine: the fluid model of exchange programs, extended to kernels.

It knows tasks as numbers only (`costs.py`), so that a device program and a plan file are timed by the same code.
"""
