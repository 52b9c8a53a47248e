"""How errors name tasks, and what they tell of other errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from einc_runtime.errors import PlanFault, RuntimeFault
from einc_runtime.execution.base import task_kind
from einc_runtime.plan.schema import AnyTask, Bundle, KernelTask


def kernel_of(bundle: Bundle, task: AnyTask) -> str:
    """The kernel that a task runs, or its kind."""
    return bundle.operations[task.operation].kernel if isinstance(task, KernelTask) else task_kind(task)


def subject(bundle: Bundle, task: AnyTask) -> str:
    return f"the {kernel_of(bundle, task)} at site {task.site}"


def place(number: int, task: AnyTask) -> str:
    return f"task {number} ({task_kind(task)} for {task.serves})"


@contextmanager
def preparing(number: int, task: AnyTask) -> Iterator[None]:
    """What is wrong with the plan is said to be so in this task."""
    try:
        yield
    except PlanFault as fault:
        within = f", {fault.where}" if fault.where else ""
        fault.where = f"tasks[{number}], {task_kind(task)} for {task.serves}{within}"
        raise


def told(error: BaseException) -> str:
    if isinstance(error, RuntimeFault):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
