"""How errors name the tasks of a plan, and how they quote other errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from einc_runtime.errors import PlanFault, RuntimeFault
from einc_runtime.execution.trace import task_kind
from einc_runtime.plan.schema import INTEGERS, AnyTask, Bundle, KernelTask


def name_kernel(bundle: Bundle, task: AnyTask) -> str:
    """The kernel that a task runs, or the task's kind."""
    return bundle.operations[task.operation].kernel if isinstance(task, KernelTask) else task_kind(task)


def name_subject(bundle: Bundle, task: AnyTask) -> str:
    """Such as `the contract at site 3`, to begin a sentence with."""
    kernel = name_kernel(bundle, task)
    return f"the {'index program' if kernel == 'index' else kernel} at site {task.site}"


def name_data(bundle: Bundle, task: AnyTask) -> str:
    """Such as `it makes 'x' of the input 'ids'`: what a kernel computes, and which inputs of integers it reads."""
    if not isinstance(task, KernelTask):
        return f"it brings what {task.serves} needs"
    operation = bundle.operations[task.operation]
    read = [bundle.tensors[number] for number in dict.fromkeys(operation.inputs)]
    inputs = [f"'{tensor.name}'" for tensor in read if tensor.kind == "input" and tensor.dtype in INTEGERS]
    return f"it makes '{operation.name}'" + (f" of the input {', '.join(inputs)}" if inputs else "")


def name_task(number: int, task: AnyTask) -> str:
    """Such as `task 17 (kernel for y)`, to say where a fault is."""
    return f"task {number} ({task_kind(task)} for {task.serves})"


@contextmanager
def locate_faults(number: int, task: AnyTask) -> Iterator[None]:
    """Adds the task to the place of any PlanFault that is raised inside."""
    try:
        yield
    except PlanFault as fault:
        within = f", {fault.where}" if fault.where else ""
        fault.where = f"tasks[{number}], {task_kind(task)} for {task.serves}{within}"
        raise


def describe_error(error: BaseException) -> str:
    """The message of an error, with its type if it is not a fault of the runtime."""
    if isinstance(error, RuntimeFault):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
