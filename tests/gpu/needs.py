"""Which primitives a plan needs, so that it is not run where one of them is broken."""

from __future__ import annotations

from einc_runtime.plan.epilogues import find_epilogues
from einc_runtime.plan.schema import Bundle, KernelTask, TransferTask
from tests.gpu.layouts import Layout
from tests.gpu.primitives import CAPTURE, CUBLAS, EPILOGUE, PEERS, PINNED, ROWS, SHARED, TRITON

STATUS_KERNELS = frozenset({"index", "append", "rope", "expert_matmul"})
"""Kernels that may check values of their inputs; their status words are fetched to pinned memory."""


def needed_by(bundle: Bundle, layout: Layout) -> frozenset[str]:
    """The primitives without which a plan cannot run; libraries for attention are a choice."""
    kernels = {operation.kernel for operation in bundle.operations}
    needed = {CAPTURE}
    if kernels - {"contract"} or not all(isinstance(task, KernelTask) for task in bundle.tasks):
        needed.add(TRITON)
    if "contract" in kernels:
        needed.add(CUBLAS)
    if "attention" in kernels:
        needed.add(SHARED)
    if find_epilogues(bundle, bundle.tasks):
        needed.add(EPILOGUE)
    if kernels & STATUS_KERNELS or layout is Layout.STAGED:
        needed.add(PINNED)
    if layout is not Layout.ONE and any(isinstance(task, TransferTask) for task in bundle.tasks):
        needed |= {ROWS, PEERS}
    return frozenset(needed)
