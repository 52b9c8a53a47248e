"""Several executions of one plan at once, over one set of weights: sessions that threads borrow.

The memory of weights, and of their layouts for products, is there once (`shared_buffers`). Inputs, intermediate values
and results are there once for each session.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from einc_runtime.errors import ArrayFault, KernelFault, PlanFault, UsageFault
from einc_runtime.execution.backends import uses_gpus
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.plan.schema import Bundle, Tensor
from einc_runtime.plan.states import STATE
from einc_runtime.text import quote_names

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.execution.facts import ExecutionFacts
    from einc_runtime.kernels.cuda.tuning import Tuning

DEFAULT_SESSIONS = 4
"""Memory for as many runs at once; each session has arenas of its own."""


class SessionPool:
    """Made from a bundle, as a `Session` is. Any number of threads may call every method.

    At most `sessions` executions run at once; further ones wait for one to end. `workers` are the threads of each
    execution on a CPU. By default, all executions together have as many as there are cores. The bits of a result depend
    on the plan and on `workers`, and neither on the session nor on what runs at the same time.

    Raises what `Session` raises, and PlanFault for a plan with states: which execution would go on from which one would
    be left to chance. Close the pool, or use it in a `with` statement.
    """

    def __init__(
        self,
        bundle: Bundle,
        backend: str = "auto",
        devices: Sequence[int] | None = None,
        *,
        sessions: int = DEFAULT_SESSIONS,
        workers: int | None = None,
        no_peer: str = "stage",
        verify: bool = True,
        tunings: Sequence[Tuning] = (),
    ) -> None:
        if sessions < 1 or (workers is not None and workers < 1):
            raise UsageFault(f"expected one session and one worker at least, found {sessions} and {workers}")
        states = [tensor.name for tensor in bundle.tensors if tensor.kind == STATE]
        if states:
            raise PlanFault(
                f"a pool cannot run a plan with states: {quote_names(states)}",
                hint="make a session for each sequence of executions",
            )
        if workers is None and not uses_gpus(bundle, backend):
            from einc_runtime.execution.cpu.host import count_cores

            workers = max(1, count_cores() // sessions)
        self.bundle = bundle
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)  # for one that waits for a session
        self._quiet = threading.Condition(self._lock)  # for those that wait until none is borrowed
        self._idle: list[Session] = []
        self._loading = self._closed = False
        common = SharedBuffers()
        try:
            for number in range(sessions):
                self._idle.append(
                    Session(
                        bundle, backend, devices, no_peer=no_peer, verify=verify and number == 0, tunings=tunings,
                        common=common, workers=workers,
                    )
                )  # fmt: skip
        except BaseException:
            for session in self._idle:
                session.close()
            raise
        self._sessions = tuple(self._idle)
        self._alive = sessions

    def __len__(self) -> int:
        """How many executions may run at once."""
        return len(self._sessions)

    @property
    def backend(self) -> str:
        return self._sessions[0].backend

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self._sessions[0].inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self._sessions[0].outputs

    @property
    def facts(self) -> ExecutionFacts:
        """How the first session runs the plan (`Session.facts`); memory is that of one session."""
        return self._sessions[0].facts

    @property
    def notes(self) -> tuple[str, ...]:
        return self._sessions[0].notes

    def load_weights(self, source: WeightSource) -> None:
        """Loads all weights, as `Session.load_weights` does, when all executions that run have ended.

        Executions that begin later wait. Where it raises an error, the weights may be neither the old nor the new ones.
        """
        with self._alone():
            first, *further = self._idle
            first.load_weights(source)
            for session in further:  # what is in memory of their own
                session.forget_weights()
                session.load_weights(source, only_missing=True)

    def run(self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None) -> dict[str, Array]:
        """One execution: the outputs by name, or some of them. See `Session.run`."""
        with self.borrow() as session:
            return session.run(inputs, outputs)

    @contextmanager
    def borrow(self) -> Iterator[Session]:
        """A session that no other thread has meanwhile. Its weights are those of all: do not load others.

        A thread that borrows several at once may wait for itself. Raises KernelFault where every session was closed by
        an error of a GPU.
        """
        with self._lock:
            self._free.wait_for(lambda: self._closed or not self._alive or (self._idle and not self._loading))
            self._require_open()
            session = self._idle.pop()  # the one that was used last, whose memory is in the cores' caches
        try:
            yield session
        finally:
            session.forget_inputs()
            with self._lock:
                if session.closed:
                    self._alive -= 1
                else:
                    self._idle.append(session)
                self._free.notify() if self._alive else self._free.notify_all()
                if self._all_are_idle():
                    self._quiet.notify_all()

    def close(self) -> None:
        """Waits for the executions that run, and releases what the backend holds. Those that wait are refused."""
        with self._lock:
            self._closed = True
            self._free.notify_all()
            self._quiet.notify_all()
            self._quiet.wait_for(self._all_are_idle)
        for session in self._sessions:
            session.close()

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until nothing runs, and lets nothing begin meanwhile."""
        with self._lock:
            self._quiet.wait_for(lambda: self._closed or not self._loading)
            self._require_open()
            self._loading = True
            try:
                self._quiet.wait_for(self._all_are_idle)
                self._require_open()
                yield
            finally:
                self._loading = False
                self._quiet.notify_all()
                self._free.notify_all()

    def _all_are_idle(self) -> bool:
        return len(self._idle) == self._alive

    def _require_open(self) -> None:
        if self._closed:
            raise ArrayFault("the pool is closed", hint="make a new pool")
        if not self._alive:
            raise KernelFault("errors of GPUs have closed all sessions of the pool", hint="make a new pool")
