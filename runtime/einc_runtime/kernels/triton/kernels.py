"""Launch sequences for what the executor asks for: one kernel, two at once, aggregations and copies.

Layers of a model have thousands of invocations that differ in addresses alone. The launches of such invocations are
built once, for stand-in addresses that are far apart and aligned like the real ones. The real addresses are then put in
their place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import GatedInvocations, Invocation, JointInvocation
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT, Alternatives, GpuArray, GpuKernel, GpuTarget, PeerFlags
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.batched_pair import build_batched_pair
from einc_runtime.kernels.triton.early_read import build_early_read
from einc_runtime.kernels.triton.epilogue import build_with_epilogue
from einc_runtime.kernels.triton.few_products import build_few_gated
from einc_runtime.kernels.triton.gated_pair import build_gated_pair
from einc_runtime.kernels.triton.joint_launches import build_joint_launch, can_join, overlap
from einc_runtime.kernels.triton.launches import SCRATCH, LaunchSequence, as_layout, relocate_step
from einc_runtime.kernels.triton.multicast_sum import build_multicast_sum
from einc_runtime.kernels.triton.peer_flags import wait_for_peers
from einc_runtime.kernels.triton.quantized import build_stored_gated
from einc_runtime.plan.early_reads import CACHE_PART
from einc_runtime.plan.launches import LaunchKind


class TritonKernels(ABC):
    """See `gpu.Kernels`. Subclasses say in `prepare` what is done with a launch sequence."""

    def __init__(self) -> None:
        self.cache = LaunchCache()

    def prepare_kernel(self, invocation: Invocation[GpuArray], target: GpuTarget) -> GpuKernel:
        inputs = list(dict.fromkeys(invocation.inputs))  # builders see which of them are one
        numbers = tuple(inputs.index(array) for array in invocation.inputs)

        def build(views: Sequence[Array]) -> LaunchSequence:
            of_inputs = [views[number] for number in numbers]
            return builders.build_kernel(invocation.on(of_inputs, views[len(inputs) :]), target.architecture)

        key = (*cache_key(invocation, target.architecture), numbers)
        return self.prepare(self.cache.get(key, [*inputs, *invocation.outputs], build), target)

    def prepare_with_epilogue(
        self, first: Invocation[GpuArray], then: Invocation[GpuArray], operand: int, target: GpuTarget
    ) -> GpuKernel | None:
        if first.name != "contract" or then.name != "map":
            return None
        sequence = build_with_epilogue(first, then, operand)
        return None if sequence is None or not self.has_epilogues(sequence, target) else self.prepare(sequence, target)

    def prepare_batched_pair(
        self, first: Invocation[GpuArray], second: Invocation[GpuArray], target: GpuTarget
    ) -> GpuKernel | None:
        if first.name != "contract" or second.name != "contract":
            return None
        sequence = build_batched_pair(first, second, target.multiprocessors)
        return None if sequence is None else self.prepare(sequence, target)

    def prepare_gated_pair(self, pair: GatedInvocations[GpuArray], target: GpuTarget) -> GpuKernel | None:
        """Our own kernel for products of few rows, which read their matrices and do little else."""
        if pair.names == ("quantized_contract", "quantized_contract", "map"):
            return self._prepare_stored_gated(pair, target)
        products = build_gated_pair(pair) if pair.names == ("contract", "contract", "map") else None
        call = None if products is None else build_few_gated(products, target.architecture)
        return None if call is None else self.prepare(LaunchSequence((call,)), target)

    def _prepare_stored_gated(self, pair: GatedInvocations[GpuArray], target: GpuTarget) -> GpuKernel | None:
        read = [*pair.first.inputs, *pair.second.inputs]
        if any(part.is_reproducible for part in pair.parts) or any(overlap(pair.then.output, array) for array in read):
            return None
        first, second, then = (
            part.on(list(map(as_layout, part.inputs)), list(map(as_layout, part.outputs))) for part in pair.parts
        )
        call = build_stored_gated(GatedInvocations(first, second, then, pair.places))
        return None if call is None else self.prepare(LaunchSequence((call,)), target)

    def prepare_launch(
        self,
        kind: LaunchKind,
        parts: Sequence[Invocation[GpuArray]],
        kept: Sequence[bool],
        target: GpuTarget,
        flags: PeerFlags | None = None,
    ) -> GpuKernel | None:
        if flags is not None:
            parts = [part.on(part.inputs, [part.output, *flags.find_copies(part.output)]) for part in parts]
        if not can_join(parts, kept):
            return None
        arrays = list(dict.fromkeys(array for part in parts for array in (*part.inputs, *part.outputs)))

        def build(views: Sequence[Array]) -> LaunchSequence:
            of = dict(zip(arrays, views, strict=True))
            on_views = [part.on([of[x] for x in part.inputs], [of[x] for x in part.outputs]) for part in parts]
            return build_joint_launch(kind, on_views, kept, target.architecture) or LaunchSequence(())

        numbers = tuple(arrays.index(array) for part in parts for array in (*part.inputs, *part.outputs))
        counts = tuple(len(part.outputs) for part in parts)
        key = (kind, *kept, numbers, counts, *(cache_key(part, target.architecture) for part in parts))
        sequence = self.cache.get(key, arrays, build)
        return self.prepare(wait_for_peers(sequence, flags), target) if sequence.steps else None

    def has_epilogues(self, sequence: LaunchSequence, target: GpuTarget) -> bool:
        """Whether a library has an algorithm for every product with an epilogue."""
        return False

    def prepare_aggregate(
        self,
        aggregation: str,
        reads: Sequence[GpuArray],
        write: GpuArray,
        target: GpuTarget,
        flags: PeerFlags | None = None,
    ) -> GpuKernel:
        copies, count = [] if flags is None else flags.find_copies(write), len(reads)

        def build(views: Sequence[Array]) -> LaunchSequence:
            return builders.build_aggregate(aggregation, views[:count], views[count], views[count + 1 :])

        sequence = self.cache.get(("aggregate", aggregation, count), [*reads, write, *copies], build)
        return self.prepare(wait_for_peers(sequence, flags), target)

    def prepare_multicast_sum(self, read: GpuArray, write: GpuArray, target: GpuTarget) -> GpuKernel | None:
        sequence = build_multicast_sum(as_layout(read), as_layout(write), target.capability)
        return None if sequence is None else self.prepare(sequence, target)

    def prepare_early_read(self, reads: Sequence[GpuArray], target: GpuTarget) -> GpuKernel | None:
        sequence = None if target.amd else build_early_read(reads, int(CACHE_PART * target.cache_bytes))
        return None if sequence is None else self.prepare(sequence, target)

    def prepare_joint_aggregation(self, invocation: JointInvocation[GpuArray], target: GpuTarget) -> GpuKernel:
        layouts = invocation.on([as_layout(x) for x in invocation.reads], [as_layout(x) for x in invocation.writes])
        return self.prepare(builders.build_joint_aggregation(layouts), target)

    def prepare_moves(self, reads: Sequence[GpuArray], writes: Sequence[GpuArray], target: GpuTarget) -> GpuKernel:
        return self.prepare(builders.build_moves([as_layout(x) for x in reads], [as_layout(x) for x in writes]), target)

    @abstractmethod
    def prepare(self, sequence: LaunchSequence, target: GpuTarget) -> GpuKernel:
        """The kernel of a launch sequence."""

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def list_alternatives(self, limit: int) -> Sequence[Alternatives]:
        return ()

    def give_up(self, reason: str) -> bool:
        return False

    @abstractmethod
    def versions(self) -> Mapping[str, str]: ...

    @abstractmethod
    def close(self) -> None: ...


_STAND_IN_DISTANCE = 1 << 44
"""The distance between stand-in addresses; no view is so large."""


class LaunchCache:
    """Launch sequences by what they depend on. `get` takes a `key` of everything except the operands."""

    def __init__(self) -> None:
        self._sequences: dict[object, LaunchSequence] = {}

    def get(
        self, key: tuple[object, ...], arrays: Sequence[GpuArray], make: Callable[[list[Array]], LaunchSequence]
    ) -> LaunchSequence:
        bases = [(n + 1) * _STAND_IN_DISTANCE + array.pointer % WORKSPACE_ALIGNMENT for n, array in enumerate(arrays)]
        views = tuple((x.shape, x.strides, x.dtype, x.pointer % WORKSPACE_ALIGNMENT) for x in arrays)
        full_key = (*key, views)
        if full_key not in self._sequences:
            stands = [replace(array, pointer=base) for array, base in zip(arrays, bases, strict=True)]
            self._sequences[full_key] = make([as_layout(array) for array in stands])
        sequence = self._sequences[full_key]
        if sequence.has_addresses:
            return make([as_layout(array) for array in arrays])

        def relocate(address: int) -> int:
            if address >= SCRATCH:
                return address
            number = address // _STAND_IN_DISTANCE - 1
            return arrays[number].pointer + address - bases[number]

        return replace(sequence, steps=tuple(relocate_step(step, relocate) for step in sequence.steps))


def cache_key(invocation: Invocation[GpuArray], architecture: str) -> tuple[object, ...]:
    """Everything that the launches of an invocation depend on, except its operands."""
    blocks = tuple((block.lower, block.upper) for block in (*invocation.input_blocks, *invocation.output_blocks))
    attributes = repr(sorted(invocation.attributes.items()))
    return invocation.name, attributes, len(invocation.inputs), blocks, architecture
