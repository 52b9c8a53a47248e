"""NCCL through cupy's binding: one call of NCCL for one call here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from einc_runtime import environment
from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.driver import Driver, DriverError
from einc_runtime.execution.cuda.nccl import NcclMessage
from einc_runtime.installing import find_cuda, suggest_packages

OLDEST = 21100
"""NCCL 2.11: graphs on a CUDA that has them (11.3), and groups of any size."""

_NCCL_UINT8 = 1  # ncclUint8


class CupyNccl:
    """See `nccl.Nccl`. Raises MissingFault where NCCL is missing or too old."""

    def __init__(self, driver: Driver, library: Any = None) -> None:
        self._driver = driver
        # support of graphs beside other operations, which we never have, can deadlock where one thread launches a graph
        # with several communicators
        environment.set_default(environment.NCCL_MIXING, "0")
        self._nccl = _load() if library is None else library
        if not getattr(self._nccl, "available", True):
            raise MissingFault("plans on GPUs of several processes need NCCL, which cupy does not find", hint=_advise())
        if self.version() < OLDEST:
            raise MissingFault(f"NCCL is {self.version()}, and must be {OLDEST} (2.11) or later", hint=_advise())

    def version(self) -> int:
        return int(_call("ncclGetVersion", self._nccl.get_version))

    def make_id(self) -> bytes:
        return bytes(part % 256 for part in _call("ncclGetUniqueId", self._nccl.get_unique_id))

    def join(self, identity: bytes, count: int, gpus: Mapping[int, int]) -> CupyCommunicators:
        # cupy takes the numbers as C's signed characters.
        numbers = tuple(part - 256 if part > 127 else part for part in identity)
        communicators: dict[int, Any] = {}
        _call("ncclGroupStart", self._nccl.groupStart)
        try:
            for device, gpu in gpus.items():
                self._driver.use(device)
                communicators[device] = _call("ncclCommInitRank", self._nccl.NcclCommunicator, count, numbers, gpu)
        finally:
            _call("ncclGroupEnd", self._nccl.groupEnd)
        return CupyCommunicators(self._nccl, communicators)


class CupyCommunicators:
    """See `nccl.Communicators`."""

    def __init__(self, library: Any, communicators: Mapping[int, Any]) -> None:
        self._nccl, self._communicators = library, communicators

    def exchange(self, device: int, messages: Sequence[NcclMessage], stream: int) -> None:
        communicator = self._communicators[device]
        _call("ncclGroupStart", self._nccl.groupStart)
        try:
            for message in messages:
                name, function = (
                    ("ncclRecv", communicator.recv) if message.incoming else ("ncclSend", communicator.send)
                )
                _call(name, function, message.pointer, message.size, _NCCL_UINT8, message.peer, stream)
        finally:
            _call("ncclGroupEnd", self._nccl.groupEnd)

    def check(self) -> None:
        for communicator in self._communicators.values():
            _call("ncclCommGetAsyncError", communicator.check_async_error)

    def abort(self) -> None:
        for communicator in self._communicators.values():
            _call("ncclCommAbort", communicator.abort)

    def close(self) -> None:
        for communicator in self._communicators.values():
            _call("ncclCommDestroy", communicator.destroy)


def _load() -> Any:
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise MissingFault(f"plans on GPUs of several processes need NCCL: {error}", hint=_advise()) from error
    return nccl


def _advise() -> str:
    return f"--backend cpu needs none; on GPUs: {suggest_packages(f'nvidia-nccl-cu{find_cuda()}>=2.11')}"


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except RuntimeError as error:  # cupy's NcclError is one
        raise DriverError(name, int(getattr(error, "status", -1)), str(error)) from error
