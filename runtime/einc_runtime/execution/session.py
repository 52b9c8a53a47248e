"""A session: a bundle made ready on a backend. Load inputs and weights, execute, offload results; again and again.

Inputs and weights stay loaded until they are replaced, so that weights are loaded once for many executions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from einc_runtime.errors import ArrayFault, MissingFault, PlanFault, raise_together
from einc_runtime.plan.schema import HOST, Bundle, Tensor
from einc_runtime.text import listed, suggest_name

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.base import Executor, Record
    from einc_runtime.execution.trace import Trace

BACKENDS = ("auto", "cpu", "cuda", "null")


class Session:
    """Made from a bundle that `einc_runtime.plan.codec.decode` or the compiler made.

    `backend` is auto, cpu or cuda (or null, which computes nothing); `devices` gives each site its device, and the CPU
    takes any. Auto takes the GPUs where some are visible, and the CPU for plans that were compiled for the host.
    `no_peer` says what two GPUs do that cannot reach each other's memory: `stage` through the host, or `refuse`.
    Raises MissingFault where a backend, devices or memory are not there, and PlanFault for kernels that the runtime
    does not have. Close it, or use it in a `with` statement, to give a GPU's memory back.
    """

    def __init__(
        self,
        bundle: Bundle,
        backend: str = "auto",
        devices: Sequence[int] | None = None,
        *,
        no_peer: str = "stage",
        executor: Executor | None = None,
    ) -> None:
        self.bundle = bundle
        if devices is not None and len(devices) != len(bundle.memory):
            raise PlanFault(
                f"{len(devices)} devices are given for a plan of {len(bundle.memory)} sites",
                hint="one for each site; sites may share a device, as in 0,0,1,1",
            )
        self._chosen = executor is None and backend == "auto"
        self._executor = executor if executor is not None else _executor(bundle, backend, devices, no_peer)
        self._tensors = {tensor.name: tensor for tensor in bundle.tensors}
        self._wanted = [tensor.name for tensor in bundle.tensors if tensor.kind != "value"]
        self._outputs = {bundle.tensors[output.tensor].name: output for output in bundle.outputs}
        self._buffers: dict[str, list[int]] = {name: [] for name in self._wanted}
        for number, buffer in enumerate(bundle.buffers):
            if buffer.role in ("input", "weight"):
                self._buffers[bundle.tensors[buffer.tensor].name].append(number)
        self._loaded: set[str] = set()
        self._executed = False
        self._trace: Trace | None = None

    @property
    def backend(self) -> str:
        return self._executor.name

    @property
    def facts(self) -> dict[str, Any]:
        """How the backend runs the plan, where it has more to say than its name: devices, kernels, versions."""
        facts = getattr(self._executor, "facts", None)
        return {} if facts is None else dict(facts())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should be told of how the plan runs."""
        from einc_runtime.kernels.llvm import compiler

        told = (
            [compiler.describe_missing(), _unused_gpus(self.bundle) if self._chosen else None]
            if self.backend == "cpu"
            else []
        )
        return (*getattr(self._executor, "notes", ()), *(note for note in told if note is not None))

    def close(self) -> None:
        """Gives back what the backend holds; nothing can be loaded, executed or offloaded afterwards."""
        close = getattr(self._executor, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What must be loaded for an execution, weights apart."""
        return tuple(tensor for tensor in self.bundle.tensors if tensor.kind == "input")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(self.bundle.tensors[output.tensor] for output in self.bundle.outputs)

    @property
    def missing(self) -> tuple[str, ...]:
        """The inputs and weights that are not loaded yet."""
        return tuple(name for name in self._wanted if name not in self._loaded)

    @property
    def trace(self) -> Trace | None:
        """The timeline of the last execution that was asked for one."""
        return self._trace

    def load(self, name: str, array: Any) -> None:
        """Loads an input or weight from an array of its type and shape; float32 is rounded for a bf16 tensor.

        The array is copied. Its byte order and memory order may be any. Raises ArrayFault.
        """
        self.load_all([(name, array)])

    def load_all(self, arrays: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Loads several arrays, or none of them: every one that is unknown, unfit or given twice is reported."""
        pairs = list(arrays.items() if isinstance(arrays, Mapping) else arrays)
        problems = [problem for name, array in pairs if (problem := self._problem(name, array)) is not None]
        names = [name for name, _ in pairs]
        problems += [f"'{name}' is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        raise_together(problems)
        for name, array in pairs:
            self._place(name, array)

    def load_weights(self, source: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Loads all weights from a safetensors file, a directory of them, an .npz file, `rand:SEED`, or a mapping.

        Names, types and shapes of a mapping's arrays may be those that a file may have, and it may have more.
        """
        from einc_runtime.execution.data.weights import each_weight, weights_of

        for name, array in each_weight(weights_of(self.bundle), source):
            self._place(name, array)

    def execute(self, *, trace: bool = False) -> float:
        """Runs the plan and returns milliseconds; with `trace`, the timeline is kept in `trace`.

        Raises ArrayFault where something is not loaded, and KernelFault for the first task that fails.
        """
        if self.missing:
            raise ArrayFault(f"nothing is loaded for {listed(self.missing)}")
        records: list[Record] | None = [] if trace else None
        milliseconds = self._executor.execute(records)
        self._executed = True
        if records is not None:
            from einc_runtime.execution.base import trace_of

            self._trace = trace_of(records, milliseconds, self.backend)
        return milliseconds

    def offload(self, name: str) -> Array:
        """A saved tensor as an array of its own, assembled from its blocks; bf16 comes as ml_dtypes' type."""
        import numpy as np

        from einc_runtime.dtypes import storage_dtype

        if name not in self._outputs:
            raise ArrayFault(f"the plan saves no '{name}'", hint=suggest_name(name, list(self._outputs)))
        if not self._executed:
            raise ArrayFault(f"'{name}' is not computed yet", hint="execute first")
        tensor = self._tensors[name]
        array = np.empty(tensor.shape, storage_dtype(tensor.dtype))
        for region in self._outputs[name].regions:
            array[_key(region.block.lower, region.block.upper)] = self._executor.fetch(region)
        return array

    def _problem(self, name: str, array: Any) -> str | None:
        import numpy as np

        from einc_runtime.dtypes import find_dtype_name

        tensor = self._tensors.get(name)
        if tensor is None or tensor.kind == "value":
            return f"the plan has no input '{name}' ({suggest_name(name, self._wanted)})"
        if not isinstance(array, np.ndarray | np.generic):
            return f"'{name}' is no numpy array but {type(array).__name__}"
        found = find_dtype_name(array.dtype.newbyteorder("=")) or str(array.dtype)
        fits = found == tensor.dtype or (tensor.dtype == "bf16" and found == "f32")
        if fits and array.shape == tensor.shape:
            return None
        expected = f"{tensor.dtype}{list(tensor.shape)}"
        return f"expected {expected} for {tensor.kind} '{name}', found {found}{list(array.shape)}"

    def _place(self, name: str, array: Any) -> None:
        import numpy as np

        whole = np.asarray(array)
        for number in self._buffers[name]:
            block = self.bundle.buffers[number].block
            self._executor.fill(number, whole[_key(block.lower, block.upper)])
        self._loaded.add(name)


def _executor(bundle: Bundle, backend: str, devices: Sequence[int] | None, no_peer: str) -> Executor:
    if backend not in BACKENDS:
        raise MissingFault(f"there is no backend '{backend[:40]}'", hint=f"there are {', '.join(BACKENDS)}")
    if backend == "cuda" or (backend == "auto" and _gpus_wanted(bundle)):
        from einc_runtime.execution.cuda.executor import CudaExecutor

        return CudaExecutor(bundle, devices, no_peer=no_peer)
    if backend == "null":
        from einc_runtime.execution.null import NullExecutor

        return NullExecutor(bundle)
    from einc_runtime.execution.cpu.executor import CpuExecutor

    return CpuExecutor(bundle)


def _unused_gpus(bundle: Bundle) -> str | None:
    """What to say where a plan for GPUs runs on the CPU although there are some."""
    from einc_runtime.execution.cuda.visible import cupy_installed, gpus_visible

    if bundle.machine == HOST or not gpus_visible() or cupy_installed():
        return None
    return "GPUs are visible here, and unused without cupy: pip install 'einc[cuda12]'"


def _gpus_wanted(bundle: Bundle) -> bool:
    """Whether a plan is for GPUs, and some are visible and can be used."""
    from einc_runtime.execution.cuda.visible import cupy_installed, gpus_visible

    return bundle.machine != HOST and gpus_visible() > 0 and cupy_installed()


def _key(lower: Sequence[int], upper: Sequence[int]) -> Any:
    return (*(slice(lo, up) for lo, up in zip(lower, upper, strict=True)), ...)
