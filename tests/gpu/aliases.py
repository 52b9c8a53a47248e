"""GPUs that are others by another name: one GPU plays eight, each with streams and memory of its own.

To the executor these are different devices, so all transfers of a plan happen, as copies within one GPU, or in pieces
through the host's memory where the aliases are told that they cannot reach each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.kernels.base import GatedInvocations, Invocation, JointInvocation
from einc_runtime.kernels.gpu import Alternatives, GpuArray, GpuKernel, GpuTarget, Kernels, PeerFlags
from einc_runtime.plan.launches import LaunchKind


class AliasedDriver:
    """A driver with `count` devices; device d is device d % n of a driver that has n. See `Driver`.

    `reach` says whether different devices reach each other's memory, where the real ones do.
    """

    def __init__(self, driver: Driver, count: int, *, reach: bool = True) -> None:
        self._driver, self._count, self._reach = driver, count, reach
        self._real_count = driver.device_count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)  # calls without a device

    def real(self, device: int) -> int:
        return device % self._real_count

    def device_count(self) -> int:
        return self._count

    def target(self, device: int) -> GpuTarget:
        return replace(self._driver.target(self.real(device)), device=device)

    def address(self, device: int) -> str:
        return self._driver.address(self.real(device))

    def can_signal(self, device: int, peer: int) -> bool:
        return self.real(device) != self.real(peer) and self._driver.can_signal(self.real(device), self.real(peer))

    def use(self, device: int) -> None:
        self._driver.use(self.real(device))

    def memory(self, device: int) -> tuple[int, int]:
        """An equal share for each of the devices that are one."""
        share = -(-self._count // self._real_count)
        free, total = self._driver.memory(self.real(device))
        return free // share, total // share

    def can_reach(self, device: int, peer: int) -> bool:
        one, other = self.real(device), self.real(peer)
        return self._reach and (one == other or self._driver.can_reach(one, other))

    def enable_peer(self, device: int, peer: int) -> None:
        one, other = self.real(device), self.real(peer)
        if one != other:  # a device has access to its own memory, and CUDA refuses to be asked for it
            self._driver.enable_peer(one, other)

    def virtual_memory(self) -> None:
        """None: one GPU cannot be several of a multicast object."""

    def synchronize(self, device: int) -> None:
        self._driver.synchronize(self.real(device))

    def allocate(self, device: int, size: int) -> int:
        return self._driver.allocate(self.real(device), size)

    def free(self, device: int, pointer: int) -> None:
        self._driver.free(self.real(device), pointer)

    def fill_bytes(self, device: int, pointer: int, value: int, size: int) -> None:
        self._driver.fill_bytes(self.real(device), pointer, value, size)

    def copy(
        self, device: int, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int
    ) -> None:
        self._driver.copy(self.real(device), target, target_pitch, source, source_pitch, width, height)

    def create_stream(self, device: int) -> int:
        return self._driver.create_stream(self.real(device))

    def create_event(self, device: int, *, timing: bool) -> int:
        return self._driver.create_event(self.real(device), timing=timing)


class AliasedKernels:
    """Kernels that are prepared for the real devices of aliases. See `Kernels`."""

    def __init__(self, kernels: Kernels, real_count: int) -> None:
        self._kernels, self._count = kernels, real_count

    def _target(self, target: GpuTarget) -> GpuTarget:
        return replace(target, device=target.device % self._count)

    def _arrays(self, arrays: Sequence[GpuArray]) -> list[GpuArray]:
        return [replace(array, device=array.device % self._count) for array in arrays]

    def _invocation(self, invocation: Invocation[GpuArray]) -> Invocation[GpuArray]:
        return invocation.on(self._arrays(invocation.inputs), self._arrays(invocation.outputs))

    def prepare_kernel(self, invocation: Invocation[GpuArray], target: GpuTarget) -> GpuKernel:
        return self._kernels.prepare_kernel(self._invocation(invocation), self._target(target))

    def prepare_with_epilogue(
        self, first: Invocation[GpuArray], then: Invocation[GpuArray], place: int, target: GpuTarget
    ) -> GpuKernel | None:
        both = self._invocation(first), self._invocation(then)
        return self._kernels.prepare_with_epilogue(*both, place, self._target(target))

    def prepare_batched_pair(
        self, first: Invocation[GpuArray], second: Invocation[GpuArray], target: GpuTarget
    ) -> GpuKernel | None:
        both = self._invocation(first), self._invocation(second)
        return self._kernels.prepare_batched_pair(*both, self._target(target))

    def prepare_gated_pair(self, pair: GatedInvocations[GpuArray], target: GpuTarget) -> GpuKernel | None:
        aliases = GatedInvocations(*map(self._invocation, pair.parts), pair.places)
        return self._kernels.prepare_gated_pair(aliases, self._target(target))

    def prepare_launch(
        self,
        kind: LaunchKind,
        parts: Sequence[Invocation[GpuArray]],
        kept: Sequence[bool],
        target: GpuTarget,
        flags: PeerFlags | None = None,
    ) -> GpuKernel | None:
        real = list(map(self._invocation, parts))
        return self._kernels.prepare_launch(kind, real, kept, self._target(target), flags)

    def prepare_aggregate(
        self,
        aggregation: str,
        reads: Sequence[GpuArray],
        write: GpuArray,
        target: GpuTarget,
        flags: PeerFlags | None = None,
    ) -> GpuKernel:
        (own,) = self._arrays([write])
        return self._kernels.prepare_aggregate(aggregation, self._arrays(reads), own, self._target(target), flags)

    def prepare_multicast_sum(self, read: GpuArray, write: GpuArray, target: GpuTarget) -> GpuKernel | None:
        (own,) = self._arrays([write])
        return self._kernels.prepare_multicast_sum(read, own, self._target(target))

    def prepare_early_read(self, reads: Sequence[GpuArray], target: GpuTarget) -> GpuKernel | None:
        return self._kernels.prepare_early_read(self._arrays(reads), self._target(target))

    def prepare_joint_aggregation(self, invocation: JointInvocation[GpuArray], target: GpuTarget) -> GpuKernel:
        real = invocation.on(self._arrays(invocation.reads), self._arrays(invocation.writes))
        return self._kernels.prepare_joint_aggregation(real, self._target(target))

    def prepare_moves(self, reads: Sequence[GpuArray], writes: Sequence[GpuArray], target: GpuTarget) -> GpuKernel:
        return self._kernels.prepare_moves(self._arrays(reads), self._arrays(writes), self._target(target))

    def versions(self) -> Mapping[str, str]:
        return self._kernels.versions()

    @property
    def notes(self) -> Sequence[str]:
        return self._kernels.notes

    def list_alternatives(self, limit: int) -> Sequence[Alternatives]:
        return self._kernels.list_alternatives(limit)

    def give_up(self, reason: str) -> bool:
        return self._kernels.give_up(reason)

    def close(self) -> None:
        self._kernels.close()
