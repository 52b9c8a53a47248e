"""Sessions of several plans on several ranks, which rank 0 leads: the others do what it does, when it does it.

Only rank 0 has prompts and logits. Before it runs a plan, it sends the inputs to all; so the program that makes text is
the same for one process and for several, and the others need only `follow`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from einc_runtime.dtypes import find_dtype_name, storage_dtype
from einc_runtime.execution.ranks.executor import RankExecutor
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers, list_shared
from einc_runtime.generation.generator import share_buffers
from einc_runtime.plan.states import STATE

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.execution.ranks.links import RankLinks
    from einc_runtime.plan.schema import Bundle

MakeExecutor = Callable[[int, "Bundle", SharedBuffers], RankExecutor]
"""Makes this rank's executor of a plan, given its number."""


class RankSession(Session):
    """A session of the plan `number` of several, on one of the ranks."""

    def __init__(
        self, number: int, bundle: Bundle, links: RankLinks, executor: RankExecutor, common: SharedBuffers
    ) -> None:
        super().__init__(bundle, executor=executor, common=common)
        self.number, self._links = number, links
        states = [(key, buffer) for buffer, key in list_shared(bundle) if key[0] == STATE]
        self._states = {key: executor.owner_of(buffer) for key, buffer in states}

    def run(self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None) -> dict[str, Array]:
        """On rank 0, starts the run on all ranks. Only there, the results are values."""
        names = list(self._outputs if outputs is None else outputs)
        if self._links.rank == 0:
            self._links.share(_encode({"run": self.number, "outputs": names}, inputs))
        return super().run(inputs, names)

    def take_states(self, source: Session) -> None:
        assert isinstance(source, RankSession)
        if self.shares_states(source):
            return
        if self._links.rank == 0:
            self._links.share(_encode({"take": self.number, "from": source.number}, {}))
        for tensor in source.states:
            state = source.offload(tensor.name)
            data = self._links.share(state.tobytes() if self._links.rank == 0 else b"")[0]
            self.load(tensor.name, np.frombuffer(data, state.dtype).reshape(state.shape))

    def shares_states(self, session: Session) -> bool:
        """Whether, on every rank, all states of the two sessions are in the same memory."""
        return super().shares_states(session) and self._states == cast(RankSession, session)._states


def open_rank_sessions(
    bundles: Sequence[Bundle], weights: WeightSource, links: RankLinks, make_executor: MakeExecutor
) -> list[RankSession]:
    """See `generator.open_sessions`. All ranks call this with the same plans, at the same time."""
    common = share_buffers()
    sessions = [
        RankSession(number, bundle, links, make_executor(number, bundle, common), common)
        for number, bundle in enumerate(bundles)
    ]
    for session in sessions:
        session.load_weights(weights, only_missing=True)
    return sessions


def follow(links: RankLinks, sessions: Sequence[RankSession]) -> None:
    """On every rank but rank 0: does what rank 0 does, until it says that this was all."""
    while text := links.share(b"")[0]:
        command, arrays = _decode(text)
        if "run" in command:
            sessions[command["run"]].run(arrays, command["outputs"])
        else:
            sessions[command["take"]].take_states(sessions[command["from"]])


def dismiss(links: RankLinks) -> None:
    """On rank 0: says to those that follow that this was all."""
    links.share(b"")


def share_arrays(links: RankLinks, arrays: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """The arrays that rank 0 gives, on all ranks."""
    return _decode(links.share(b"" if arrays is None else _encode({}, arrays))[0])[1]


def _encode(command: dict[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """A line of JSON, and the bytes of the arrays that it describes."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    shapes = [[name, find_dtype_name(array.dtype), array.shape] for name, array in contiguous.items()]
    line = json.dumps(command | {"arrays": shapes}).encode() + b"\n"
    return line + b"".join(array.tobytes() for array in contiguous.values())


def _decode(text: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    line, _, data = text.partition(b"\n")
    command = json.loads(line)
    arrays, start = {}, 0
    for name, dtype, shape in command["arrays"]:
        count = math.prod(shape)
        arrays[name] = np.frombuffer(data, storage_dtype(dtype), count, start).reshape(shape)
        start += arrays[name].nbytes
    return command, arrays
