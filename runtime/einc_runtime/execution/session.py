"""A session is a bundle prepared on a backend. Load inputs and weights, execute, and offload results, many times.

Inputs and weights stay loaded until others are loaded, so weights need to be loaded only once for many executions.
States keep what an execution leaves in them, for the next one.
Threads may share a session: `run` does all of this as one step, and each step alone is refused where another thread's
inputs would be computed (`thread_guard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from einc_runtime.errors import ArrayFault, raise_together
from einc_runtime.execution.backends import make_executor, note_unused_gpus, require_device_count
from einc_runtime.execution.thread_guard import ThreadGuard
from einc_runtime.plan.codec import is_decoded
from einc_runtime.plan.regions import find_needed_tensors, is_loaded
from einc_runtime.plan.repetition import unfold
from einc_runtime.plan.schema import Block, Bundle, Region, Tensor
from einc_runtime.plan.states import STATE, is_weight
from einc_runtime.text import quote_names, suggest_name

if TYPE_CHECKING:
    from pathlib import Path

    from einc_runtime.dtypes import Array
    from einc_runtime.execution.base import Executor, TaskRecord
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.execution.facts import ExecutionFacts
    from einc_runtime.execution.shared_buffers import SharedBuffers
    from einc_runtime.execution.trace import Trace
    from einc_runtime.kernels.cuda.tuning import Tuning


class Session:
    """Made from a bundle that `einc_runtime.plan.codec.decode` or the compiler made.

    `backend` is auto, cpu or cuda. Auto uses the GPUs where some are visible, and the
    CPU for plans that were compiled for the host. `devices` gives each site its device; the CPU accepts any. `no_peer`
    says what happens where two GPUs cannot reach each other's memory: `stage` through the host, or `refuse`.
    `tunings` say which algorithms multiply on GPUs (`einc_runtime.kernels.cuda.tuning.read_tunings`), and
    `kernel_folders` have kernels for GPUs that were compiled for this plan. `common` is
    memory that sessions of several plans have together: what one of them has loaded, the others have. `workers` are the
    threads of an execution on the CPU: one per core if it is None.

    The plan is proved first (`proved_plans`), unless `verify` is false and it was read from a file, which validates it,
    or the session gets an `executor` that has taken it already. Raises MissingFault where a backend, devices or memory
    are missing, and PlanFault for plans that cannot be proved and kernels that the runtime does not have. Close the
    session, or use it in a `with` statement, to release the memory of GPUs.
    """

    def __init__(
        self,
        bundle: Bundle,
        backend: str = "auto",
        devices: Sequence[int] | None = None,
        *,
        no_peer: str = "stage",
        executor: Executor | None = None,
        verify: bool = True,
        tunings: Sequence[Tuning] = (),
        common: SharedBuffers | None = None,
        workers: int | None = None,
        kernel_folders: Sequence[Path] = (),
    ) -> None:
        self.bundle = bundle = unfold(bundle)
        if executor is None and (verify or not is_decoded(bundle)):
            from einc_runtime.execution.proved_plans import require_proof

            require_proof(bundle, decoded=is_decoded(bundle))
        require_device_count(bundle, devices)
        self._is_default = executor is None and backend == "auto"
        self._executor = executor or make_executor(
            bundle, backend, devices, no_peer, tunings, common, workers, kernel_folders
        )
        self._tensors = {tensor.name: tensor for tensor in bundle.tensors}
        self._inputs = tuple(tensor for tensor in bundle.tensors if tensor.kind == "input")
        self._loadable = [tensor.name for tensor in bundle.tensors if tensor.kind != "value"]
        self._outputs = {bundle.tensors[output.tensor].name: output for output in bundle.outputs}
        self._buffers: dict[str, list[int]] = {name: [] for name in self._loadable}
        for number, buffer in enumerate(bundle.buffers):
            if is_loaded(bundle, number):
                self._buffers[bundle.tensors[buffer.tensor].name].append(number)
        needed = (bundle.tensors[number].name for number in find_needed_tensors(bundle))
        self._needed = {name for name in needed if any(map(self._executor.holds, self._buffers[name]))}
        self._parts = {name: self._list_parts(name) for name in self._loadable}
        self._missing = self._needed - {tensor.name for tensor in self.states if not is_weight(tensor)}
        self._executed = False
        self._guard = ThreadGuard()
        self._trace: Trace | None = None
        self._common = common
        self._note_filled_weights()
        zeros = [number for state in self.states if not is_weight(state) for number in self._buffers[state.name]]
        if not all(map(self._executor.is_filled, zeros)):
            self.clear_states()

    @property
    def backend(self) -> str:
        return self._executor.name

    @property
    def facts(self) -> ExecutionFacts:
        """How the backend runs the plan: threads or devices, kernels, memory, versions."""
        return self._executor.facts()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the plan runs."""
        from einc_runtime.kernels.llvm import compiler
        from einc_runtime.kernels.numpy import onednn

        notes: list[str | None] = [*self._executor.notes]
        if self.backend == "cpu":
            notes += [compiler.describe_missing(), onednn.describe_problem()]
            notes += [note_unused_gpus(self.bundle) if self._is_default else None]
        return tuple(note for note in notes if note is not None)

    @property
    def closed(self) -> bool:
        """Whether the backend has released what it held, as it does after an error of a GPU."""
        return self._executor.closed

    def close(self) -> None:
        """Releases what the backend holds; nothing can be loaded, executed or offloaded afterwards."""
        with self._guard.entered():
            self._executor.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What can be loaded for an execution besides the weights. Those that nothing uses need not be loaded."""
        return self._inputs

    @property
    def states(self) -> tuple[Tensor, ...]:
        """What executions leave for the next one: zeros at first, or weights that are loaded before the first one. All
        can be loaded and offloaded as well."""
        return tuple(tensor for tensor in self.bundle.tensors if tensor.kind == STATE)

    def clear_states(self) -> None:
        """Fills all states with zeros, except weights, which have to be loaded again."""
        import numpy as np

        from einc_runtime.dtypes import storage_dtype

        with self._guard.entered():
            for tensor in self.states:
                if is_weight(tensor):
                    self._mark_missing([tensor])
                    continue
                for number in self._buffers[tensor.name]:
                    zero = np.zeros((), storage_dtype(tensor.dtype))
                    self._executor.fill(number, np.broadcast_to(zero, self.bundle.buffers[number].block.shape))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(self.bundle.tensors[output.tensor] for output in self.bundle.outputs)

    @property
    def missing(self) -> tuple[str, ...]:
        """The inputs and weights that are needed and not loaded yet."""
        return tuple(name for name in self._loadable if name in self._missing)

    @property
    def trace(self) -> Trace | None:
        """The timeline of the last execution that was asked for one."""
        return self._trace

    def load(self, name: str, array: Any) -> None:
        """Loads an input or weight from an array of its type and shape; float32 is rounded for a bf16 tensor.

        The array is copied. Its byte order and memory order may be any. It may be of numpy, or of any library that has
        `__dlpack__`. Raises ArrayFault.
        """
        self.load_all([(name, array)])

    def load_all(self, arrays: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Loads all arrays, or none if one of them is unknown, unfit or given twice; all problems are reported."""
        from einc_runtime.execution.data.dlpack import read_given

        named_arrays = arrays.items() if isinstance(arrays, Mapping) else arrays
        names: list[str] = []
        pairs: list[tuple[str, Array]] = []
        problems: list[str] = []
        for name, array in named_arrays:
            tensor = self._tensors.get(name)
            if tensor is None or tensor.kind == "value":
                checked: Array | str = f"the plan has no input '{name}' ({suggest_name(name, self._loadable)})"
            else:
                checked = read_given(tensor, array)
            names.append(name)
            if isinstance(checked, str):
                problems.append(checked)
            else:
                pairs.append((name, checked))
        if len({*names}) < len(names):
            problems += [f"'{name}' is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        raise_together(problems)
        with self._guard.entered():
            if any(self._tensors[name].kind == "input" for name in names):
                self._guard.take_over()
            for name, array in pairs:
                self._store(name, array)

    def offload_own(self) -> Iterator[tuple[str, Block, Array]]:
        """The blocks of the outputs that this process has, with the names of their tensors; where there are several
        processes, nothing is sent. Raises ArrayFault before an execution."""
        with self._guard.entered():
            if not self._executed:
                raise ArrayFault("nothing is computed yet", hint="execute first")
            for name, saved in self._outputs.items():
                for region in saved.regions:
                    values = self._executor.fetch_own(region)
                    if values is not None:
                        yield name, region.block, values

    def copy_states(self, names: Iterable[str]) -> dict[int, Array]:
        """Copies of the blocks of states that this process has, by the numbers of their buffers: for `put_back`."""
        import numpy as np

        with self._guard.entered():
            copies: dict[int, Array] = {}
            for number in (number for name in names for number in self._buffers[name]):
                values = self._executor.fetch_own(Region(number, self.bundle.buffers[number].block))
                if values is not None:
                    copies[number] = np.array(values)
            return copies

    def put_back(self, copies: Mapping[int, Array]) -> None:
        """Gives states the contents that `copy_states` has returned."""
        with self._guard.entered():
            for number, values in copies.items():
                self._executor.fill(number, values)

    def shares_states(self, session: Session) -> bool:
        """Whether all states of the two sessions are in the same memory."""
        together = self._common is not None and self._common is session._common and self.backend == session.backend
        states = self._executor.common_states()
        return together and states is not None and states == session._executor.common_states()

    def take_states(self, session: Session) -> None:
        """Copies the states of another session, unless the two share them."""
        if not self.shares_states(session):
            for tensor in session.states:
                self.load(tensor.name, session.offload(tensor.name))

    def load_weights(self, source: WeightSource, *, only_missing: bool = False) -> None:
        """Loads all weights from a safetensors file, a directory of them, an .npz file, `rand:SEED`, or a mapping; or
        from a list of these, of which the first that has a weight counts.

        The arrays of a mapping may have the names, types and shapes that they may have in a file; others are ignored.
        `only_missing` leaves out what is loaded, for example by a session that has the same memory.
        """
        from einc_runtime.execution.data.weights import iterate_weights, list_weights

        self._note_filled_weights()
        names = self._missing if only_missing else self._needed
        needed = [tensor for tensor in list_weights(self.bundle) if tensor.name in names]
        with self._guard.entered():
            blocks = {weight.name: self._list_own_blocks(weight.name) for weight in needed}
            for name, array in iterate_weights(needed, source, self._find_memory, blocks):
                self._store(name, array)

    def run(self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None) -> dict[str, Array]:
        """Loads all inputs, executes, and offloads all outputs or some, as one step that threads wait for.

        Weights stay; inputs have to be loaded again. Raises ArrayFault and KernelFault as the single steps do.
        """
        with self._guard.entered():
            names = [tensor.name for tensor in self.inputs]
            absent = [name for name in names if name in self._needed and name not in inputs]
            if absent and all(name in self._tensors for name in inputs):  # an unknown name is told by `load_all`
                hint = f"the inputs are {quote_names(names)}"
                raise ArrayFault(f"nothing is given for input {quote_names(absent)}", hint=hint)
            self._guard.take_over()
            try:
                self.load_all(inputs)
                self.execute()
                return {name: self.offload(name) for name in (self._outputs if outputs is None else outputs)}
            finally:
                self.forget_inputs()

    def forget_inputs(self) -> None:
        """Forgets all inputs and results: any thread may load others, and none can be offloaded before."""
        with self._guard.entered():
            self._guard.mark_executed()
            self._mark_missing(self.inputs)
            self._executed = False

    def forget_weights(self) -> None:
        """Forgets all weights, except those that sessions with the same memory have loaded."""
        with self._guard.entered():
            self._mark_missing(tensor for tensor in self.bundle.tensors if is_weight(tensor))
            self._note_filled_weights()

    def execute(self, *, trace: bool = False) -> float:
        """Runs the plan and returns milliseconds; with `trace`, the timeline is kept in `trace`.

        Raises ArrayFault where something is not loaded, and KernelFault for the first task that fails.
        """
        with self._guard.entered():
            self._guard.require_own_inputs()
            if self._missing:
                self._note_filled_weights()
            if self._missing:
                raise ArrayFault(f"nothing is loaded for {quote_names(self.missing)}")
            return self._execute(trace)

    def _execute(self, trace: bool) -> float:
        records: list[TaskRecord] | None = [] if trace else None
        self._guard.mark_executed()
        self._executed = False
        milliseconds = self._executor.execute(records)
        self._executed = True
        if records is not None:
            from einc_runtime.execution.base import make_trace

            self._trace = make_trace(records, milliseconds, self.backend)
        return milliseconds

    def offload(self, name: str) -> Array:
        """A saved tensor or a state as a new array, assembled from its blocks; bf16 comes in the type of ml_dtypes."""
        state = name in self._tensors and self._tensors[name].kind == STATE
        if name not in self._outputs and not state:
            raise ArrayFault(f"the plan saves no '{name}'", hint=suggest_name(name, list(self._outputs)))
        tensor = self._tensors[name]
        with self._guard.entered():
            if not state:
                self._guard.require_own_inputs()
            if not self._executed and not state:
                raise ArrayFault(f"'{name}' is not computed yet", hint="execute first")
            state_regions = [Region(n, self.bundle.buffers[n].block) for n in self._buffers.get(name, ())]
            regions = state_regions if state else self._outputs[name].regions
            pieces: Iterable[Array | None] = map(self._executor.fetch, regions)
            if len(regions) == 1:
                (values,) = pieces
                if values is not None and values.shape == tensor.shape:
                    return values if values.flags.owndata else values.copy()
                pieces = (values,)
            return _assemble(tensor, regions, pieces)

    def _note_filled_weights(self) -> None:
        """Finds the weights that sessions with the same memory have loaded."""
        for tensor in self.bundle.tensors:
            numbers = self._buffers.get(tensor.name, ())
            if is_weight(tensor) and numbers and all(map(self._executor.is_filled, numbers)):
                self._missing.discard(tensor.name)

    def _mark_missing(self, tensors: Iterable[Tensor]) -> None:
        self._missing.update(tensor.name for tensor in tensors if tensor.name in self._needed)

    def _list_own_blocks(self, name: str) -> list[Block]:
        """The blocks of a weight that this process has in memory."""
        held = filter(self._executor.holds, self._buffers[name])
        return list(dict.fromkeys(self.bundle.buffers[number].block for number in held))

    def _find_memory(self, tensor: Tensor) -> Array | None:
        """The memory of a weight that lies whole and dense in one place, which has no values from now on."""
        memories = [self._executor.memory_of(number) for number in self._buffers[tensor.name]]
        memory = memories[0] if memories else None
        if memory is None or any(candidate is not memory for candidate in memories):
            return None
        if memory.shape != tensor.shape or not memory.flags.c_contiguous or not memory.size:
            return None
        self._mark_missing([tensor])
        return memory

    def _list_parts(self, name: str) -> list[tuple[int, Any]]:
        """The buffers of a tensor, and what each holds of it; None for all of it."""
        blocks = [(number, self.bundle.buffers[number].block) for number in self._buffers[name]]
        shape = self._tensors[name].shape
        return [(n, None if block.shape == shape else _slices(block.lower, block.upper)) for n, block in blocks]

    def _store(self, name: str, array: Array) -> None:
        for number, part in self._parts[name]:
            self._executor.fill(number, array if part is None else array[part])
        self._missing.discard(name)


def _slices(lower: Sequence[int], upper: Sequence[int]) -> Any:
    return (*(slice(lo, up) for lo, up in zip(lower, upper, strict=True)), ...)


def _assemble(tensor: Tensor, regions: Sequence[Region], pieces: Iterable[Array | None]) -> Array:
    """A new array of what these regions have; another process has those that are None."""
    import numpy as np

    from einc_runtime.dtypes import storage_dtype

    array = np.empty(tensor.shape, storage_dtype(tensor.dtype))
    for region, values in zip(regions, pieces, strict=True):
        if values is not None:
            array[_slices(region.block.lower, region.block.upper)] = values
    return array
