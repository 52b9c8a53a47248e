"""One clear error for whatever goes wrong on a GPU: which task, where it is known, and what CUDA or a library said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.errors import KernelFault, MissingFault, RuntimeFault
from einc_runtime.execution import task_errors
from einc_runtime.execution.cuda.driver import OUT_OF_MEMORY, DriverError
from einc_runtime.plan.schema import AnyTask, Bundle

_CUPY = ("CUDARuntimeError", "CUDADriverError")


@dataclass(frozen=True, slots=True)
class Blame:
    """Names the tasks of a bundle (as they are run) in errors."""

    bundle: Bundle
    tasks: Sequence[AnyTask]

    def kernel(self, number: int) -> str:
        """The kernel that a task runs, or its kind."""
        return task_errors.kernel_of(self.bundle, self.tasks[number])

    def place(self, number: int) -> str:
        return task_errors.place(number, self.tasks[number])

    def subject(self, number: int) -> str:
        return task_errors.subject(self.bundle, self.tasks[number])

    def fault(self, error: Exception, number: int) -> RuntimeFault:
        """What a task's error is to the caller; numbers below 0 are no task's."""
        if isinstance(error, RuntimeFault):
            return error
        if number < 0:
            return plan_fault(error, self.bundle.model)
        if out_of_memory(error):
            return _short_of_memory(error, self.subject(number), self.place(number))
        return KernelFault(f"{self.subject(number)} failed: {told(error)}", where=self.place(number))


def plan_fault(error: Exception, what: str) -> RuntimeFault:
    """An error that no task can be blamed for, such as that of a replay."""
    if isinstance(error, RuntimeFault):
        return error
    if out_of_memory(error):
        return _short_of_memory(error, what, None)
    hint = "`einc run --trace t.json` with CUDA_LAUNCH_BLOCKING=1 in the environment names the task"
    return KernelFault(f"{what} failed on the GPU: {told(error)}", hint=hint)


def out_of_memory(error: Exception) -> bool:
    """Whether CUDA or a library says so: by CUDA's status, or in the name of the error, as cuBLAS's and PyTorch's."""
    if isinstance(error, DriverError) or type(error).__name__ in _CUPY:
        return bool(getattr(error, "status", None) == OUT_OF_MEMORY)
    return "OutOfMemory" in type(error).__name__


def _short_of_memory(error: Exception, what: str, where: str | None) -> MissingFault:
    hint = "end what else uses the GPU, spread the sites over more GPUs (--devices), or compile for more sites"
    return MissingFault(f"{what} ran out of GPU memory: {told(error)}", where=where, hint=hint)


def told(error: BaseException) -> str:
    return str(error) if isinstance(error, DriverError) else task_errors.told(error)
