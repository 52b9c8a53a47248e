"""Failures on a GPU: values that kernels report through device memory, and one kind of fault for all other errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.errors import KernelFault, MissingFault, RuntimeFault
from einc_runtime.execution import task_errors
from einc_runtime.execution.cuda.driver import OUT_OF_MEMORY, Driver, DriverError
from einc_runtime.kernels.gpu import Launch
from einc_runtime.plan.schema import AnyTask, Bundle

_CUPY_ERRORS = ("CUDARuntimeError", "CUDADriverError")
WORD_BYTES = 4  # of a counter of faults, or of a flag: an integer of 32 bits


@dataclass(frozen=True, slots=True)
class TaskErrors:
    """Names the tasks of a bundle, as they are run, in errors."""

    bundle: Bundle
    tasks: Sequence[AnyTask]

    def name_kernel(self, number: int) -> str:
        """The kernel that a task runs, or the task's kind."""
        return task_errors.name_kernel(self.bundle, self.tasks[number])

    def name_task(self, number: int) -> str:
        return task_errors.name_task(number, self.tasks[number])

    def name_subject(self, number: int) -> str:
        return task_errors.name_subject(self.bundle, self.tasks[number])

    def name_data(self, number: int) -> str:
        return task_errors.name_data(self.bundle, self.tasks[number])

    def make_fault(self, error: Exception, number: int) -> RuntimeFault:
        """The fault to raise for an error of a task; a number below 0 means that no task caused it."""
        if isinstance(error, RuntimeFault):
            return error
        if number < 0:
            return make_plan_fault(error, self.bundle.model)
        if is_out_of_memory(error):
            return _make_memory_fault(error, self.name_subject(number), self.name_task(number))
        return KernelFault(f"{self.name_subject(number)} failed: {describe_error(error)}", where=self.name_task(number))


def make_plan_fault(error: Exception, subject: str) -> RuntimeFault:
    """The fault for an error that belongs to no task, such as one of a replay."""
    if isinstance(error, RuntimeFault):
        return error
    if is_out_of_memory(error):
        return _make_memory_fault(error, subject, None)
    hint = "`einc run --trace t.json` with CUDA_LAUNCH_BLOCKING=1 in the environment names the task"
    return KernelFault(f"{subject} failed on the GPU: {describe_error(error)}", hint=hint)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the status of CUDA, or the name of a library's error (cuBLAS, PyTorch), means that memory ran out."""
    if isinstance(error, DriverError) or type(error).__name__ in _CUPY_ERRORS:
        return bool(getattr(error, "status", None) == OUT_OF_MEMORY)
    return "OutOfMemory" in type(error).__name__


def _make_memory_fault(error: Exception, subject: str, where: str | None) -> MissingFault:
    hint = "end what else uses the GPU, spread the sites over more GPUs (--devices), or compile for more sites"
    return MissingFault(f"{subject} ran out of GPU memory: {describe_error(error)}", where=where, hint=hint)


def describe_error(error: BaseException) -> str:
    return str(error) if isinstance(error, DriverError) else task_errors.describe_error(error)


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """A step whose kernel reports values that no input may have (an id outside of its vocabulary), and its message."""

    step: int
    task: int
    device: int
    message: str


class DeviceStatus:
    """A word in device memory for every check, which the kernel of the step sets where the check fails.

    The words of a device come to the host as one copy at the end of every execution, as a step of the graph.
    `allocate_zeros(device, size)` takes device memory, and `allocate_host(size)` takes pinned host memory.
    """

    def __init__(
        self,
        driver: Driver,
        checks: Sequence[DeviceCheck],
        allocate_zeros: Callable[[int, int], int],
        allocate_host: Callable[[int], int],
    ) -> None:
        self._driver = driver
        self._checks = sorted(checks, key=lambda check: (check.device, check.step))
        self._spans: dict[int, tuple[int, int, int]] = {}  # device -> address on it, address on the host, size
        self._address: dict[int, int] = {}
        self._host = allocate_host(WORD_BYTES * len(checks)) if checks else 0
        words = (ctypes.c_int32 * len(checks)).from_address(self._host) if checks else ()
        self._words = np.asarray(words, np.int32)
        for device in sorted({check.device for check in checks}):
            checks_here = [n for n, check in enumerate(self._checks) if check.device == device]
            pointer = allocate_zeros(device, WORD_BYTES * len(checks_here))
            self._spans[device] = pointer, self._host + WORD_BYTES * checks_here[0], WORD_BYTES * len(checks_here)
            self._address.update((self._checks[n].step, pointer + WORD_BYTES * i) for i, n in enumerate(checks_here))

    def address(self, step: int) -> int:
        """The address of the step's word; 0 where it has none."""
        return self._address.get(step, 0)

    def make_fetch(self, device: int) -> Launch:
        """The launch that copies the words of a device to the host."""
        source, target, size = self._spans[device]
        copy_async = self._driver.copy_async
        return lambda stream: copy_async(target, size, source, size, size, 1, stream)

    def pop_failed(self) -> list[DeviceCheck]:
        """The checks that failed in the last execution, by step; all words are cleared for the next one."""
        if not self._words.any():
            return []
        failed = [check for check, word in zip(self._checks, self._words, strict=True) if word]
        self.clear()
        return sorted(failed, key=lambda check: check.step)

    def clear(self) -> None:
        for device, (pointer, _, size) in self._spans.items():
            self._driver.fill_bytes(device, pointer, 0, size)
