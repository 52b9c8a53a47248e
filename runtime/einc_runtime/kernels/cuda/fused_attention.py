"""Attention by libraries (`attention_libraries`) in place of our own kernel, wherever they can express it.

cuDNN through its own package takes nothing but addresses (`cudnn_graphs.py`). Of the others, a library that can writes
its result where the plan has it. What else it needs, such as the lse, it allocates with
PyTorch's allocator, from a pool that belongs to one stream. Kernels of one stream run one after another, so they can
share it. The pool is filled when kernels are warmed up, and lasts until the kernels are closed, after the graph that
uses it. Results in there are copied to where the plan has them.

What a library does in a capture cannot be tried beforehand, so a library may fail at any time. The executor then starts
again without the libraries that were in use (`AttentionLibraries.give_up`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.cuda import attention_libraries
from einc_runtime.kernels.cuda.attention_libraries import AttentionLibrary, describe_rejection
from einc_runtime.kernels.cuda.cudnn_graphs import CudnnGraphs
from einc_runtime.kernels.cuda.varlen_attention import Attend, VarlenAttention, as_varlen, find_flaw
from einc_runtime.kernels.gpu import Description, GpuArray, GpuKernel, GpuTarget, Launch
from einc_runtime.kernels.triton.launches import as_layout


class AttentionLibraries:
    """The libraries of one executor's kernels. They are looked for at the first attention that they can express."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._libraries: list[AttentionLibrary] | None = None
        self._used: dict[str, str] = {}  # name and version of those that kernels use
        self._taken: set[tuple[str, str]] = set()  # the same by name and variant
        self._given_up: set[tuple[str, str]] = set()
        self._flaws: dict[tuple[object, ...], str | None] = {}
        self._pools: dict[tuple[int, int], Any] = {}  # device and stream

    @property
    def versions(self) -> Mapping[str, str]:
        return self._used

    def give_up(self, reason: str) -> bool:
        """Stops using the libraries that were in use; False if there was none."""
        if not self._taken:
            return False
        named = ", ".join(f"{name} ({variant})" for name, variant in sorted(self._taken))
        self.notes.append(describe_rejection(named, reason))
        self._given_up |= self._taken
        self._taken.clear()
        self._used.clear()
        return True

    def close(self) -> None:
        """Frees memory after the last launch, except on a lost device, where PyTorch would end the process."""
        while self._pools:
            (device, _), pool = self._pools.popitem()
            if not _device_works(device):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        for library in self._libraries or ():
            if isinstance(library, CudnnGraphs):
                library.close()

    def prepare(self, invocation: Invocation[GpuArray], target: GpuTarget) -> GpuKernel | None:
        """A kernel by the first library that fits and computes correctly on this device, or None. Raises PlanFault."""
        if self._libraries == []:
            return None
        inputs, outputs = invocation.inputs, invocation.outputs
        if inputs[1].dtype != inputs[0].dtype:
            return None  # no library reads floats of 8 bits without a scale for them
        how = as_varlen(
            AttentionCall.parse(invocation.on([as_layout(x) for x in inputs], [as_layout(x) for x in outputs]))
        )
        if how is None:
            return None
        if self._libraries is None:
            self._libraries, notes = attention_libraries.find_libraries()
            self.notes += notes
        for library, variant, attend in self._list_choices(how, inputs, target):
            if (library.name, variant) in self._given_up:
                continue
            if self._is_right(library, variant, attend, how, inputs, target):
                kernel = self._make_kernel(library, variant, attend, how, (inputs, outputs), target)
                if kernel is not None:
                    self._used[library.name] = library.version
                    self._taken.add((library.name, variant))
                    return kernel
        return None

    def _make_kernel(
        self,
        library: AttentionLibrary,
        variant: str,
        attend: Attend,
        how: VarlenAttention,
        arrays: tuple[Sequence[GpuArray], Sequence[GpuArray]],
        target: GpuTarget,
    ) -> GpuKernel | None:
        """The kernel of a library that computes correctly; None where it refuses these operands all the same."""
        if isinstance(library, CudnnGraphs):
            try:
                return library.prepare(how, *arrays, target)
            except Exception as error:  # a library may raise anything
                self._note(library, f"{type(error).__name__}: {error}")
                return None

        def bind(workspace: int, status: int) -> Launch:
            return self._bind(attend, how, *arrays, target)

        description = Description(library.name, library.version, f"attention {arrays[0][0].dtype}, {variant}")
        return GpuKernel(bind, description)

    def _list_choices(
        self, how: VarlenAttention, inputs: Sequence[GpuArray], target: GpuTarget
    ) -> list[tuple[AttentionLibrary, str, Attend]]:
        """The functions of all libraries that may compute it, the best first."""
        choices: list[tuple[AttentionLibrary, str, Attend]] = []
        for library in self._libraries or ():
            try:
                functions = library.choices(*_as_tensors(how, inputs, target), how)
            except Exception as error:
                self._note(library, f"{type(error).__name__}: {error}")
            else:
                choices += [(library, variant, attend) for variant, attend in functions]
        return attention_libraries.sort_choices(choices, target.capability)

    def _is_right(
        self,
        library: AttentionLibrary,
        variant: str,
        attend: Attend,
        how: VarlenAttention,
        inputs: Sequence[GpuArray],
        target: GpuTarget,
    ) -> bool:
        """Whether the library computes this kind correctly on this device; each kind is tested once."""
        import torch

        q, k = inputs[:2]
        group, width = q.shape[0] // k.shape[0], q.shape[2]
        key = (library.name, variant, q.dtype, group, width, target.device, how.kind)
        if key not in self._flaws:
            self._flaws[key] = find_flaw(attend, how, q.dtype, group, width, torch.device("cuda", target.device))
        wrong = self._flaws[key]
        if wrong is not None:
            self._note(library, f"{variant}: {wrong}")
        return wrong is None

    def _note(self, library: AttentionLibrary, reason: str) -> None:
        note = describe_rejection(f"{library.name} {library.version}", reason)
        if note not in self.notes:
            self.notes.append(note)

    def _bind(
        self,
        attend: Attend,
        how: VarlenAttention,
        inputs: Sequence[GpuArray],
        outputs: Sequence[GpuArray],
        target: GpuTarget,
    ) -> Launch:
        import torch

        device = torch.device("cuda", target.device)
        q, k, v = _as_tensors(how, inputs, target)
        o, lse = _as_tensor(outputs[0], target).permute(1, 0, 2), _as_tensor(outputs[1], target)
        bounds = [torch.tensor(marks, dtype=torch.int32, device=device) for marks in (how.queries, how.keys)]
        torch.cuda.synchronize(device)

        def launch(stream: int) -> None:
            with torch.cuda.device(device), torch.no_grad():
                pool = self._pool(target.device, stream)
                external = torch.cuda.ExternalStream(stream, device=device)
                with torch.cuda.stream(external), _allocate_from(pool, target.device):
                    result, logs = attend(q, k, v, bounds[0], bounds[1], how, o)
                    if result is not o:
                        o.copy_(result)
                    lse.copy_(logs)
                    del result, logs  # back to the pool, while this pool is in use
                if pool.use_count() < 1:  # others could get its memory, which the graph still uses
                    raise RuntimeError("PyTorch's pool of memory did not outlast its use")

        return launch

    def _pool(self, device: int, stream: int) -> Any:
        import torch

        if (device, stream) not in self._pools:
            self._pools[device, stream] = torch.cuda.MemPool()
        return self._pools[device, stream]


@contextmanager
def _allocate_from(pool: Any, device: int) -> Iterator[None]:
    """Lets PyTorch allocate for this thread from a pool, also in a capture that is not PyTorch's own.

    `torch.cuda.use_mem_pool` makes the same calls, and newer versions of it look for PyTorch's capture first.
    """
    import torch

    calls: Any = torch._C
    calls._cuda_beginAllocateCurrentThreadToPool(device, pool.id)
    try:
        yield
    finally:
        calls._cuda_endAllocateToPool(device, pool.id)
        calls._cuda_releasePool(device, pool.id)  # undoes the use that beginning counted


def _device_works(device: int) -> bool:
    """Whether the device still works: after an error such as an illegal address every later call fails."""
    import torch

    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True


def _as_tensors(how: VarlenAttention, inputs: Sequence[GpuArray], target: GpuTarget) -> tuple[Any, Any, Any]:
    """q, k and v as (tokens, heads, elements), with only those keys that belong to the sequences."""
    q, k, v = (_as_tensor(array, target).permute(1, 0, 2) for array in inputs[:3])
    first, last = how.first_key, how.first_key + how.keys[-1]
    return q, k[first:last], v[first:last]


def _as_tensor(array: GpuArray, target: GpuTarget) -> Any:
    import torch

    tensor = torch.as_tensor(array, device=torch.device("cuda", target.device))
    return tensor.view(torch.bfloat16) if array.dtype == "bf16" else tensor
