"""The simulation of exchange programs: how long a program takes on a machine, and what happens when.

`fluid.py` shares bandwidth among jobs, `body_run.py` runs one body, and `simulator.py` has the two functions that
others call: `simulate` for one program, `BodyEvaluator` for many bodies of one preamble.
"""
