"""The Python API under the paper's name: `from einc import einsummable as es` (Section 2)."""

from einc.api import Graph, Plan, Tensor, compileGraph, createGraph, tensorDesc

__all__ = ["Graph", "Plan", "Tensor", "compileGraph", "createGraph", "tensorDesc"]
