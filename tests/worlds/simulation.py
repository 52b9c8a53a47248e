"""A scheduler whose threads go on in an order that a seed chooses: threads of greenlets, one at a time.

Every call of the scheduler is a *step*: there the world may go on with another thread, let this one stall, or
interrupt the calling thread. So a run is a function of its seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from greenlet import getcurrent, greenlet

MAX_STEPS = 20_000


class Finding(BaseException):
    """Something that may not happen in any world; no code of the product may take it for an error of its own."""


class SimulatedThread:
    """A thread: running, ready, waiting at a monitor (until it is notified or a time), or stalled (until a time)."""

    __slots__ = ("deadline", "fiber", "monitor", "name", "timed_out", "urgency")

    def __init__(self, name: str, fiber: Any) -> None:
        self.name, self.fiber = name, fiber
        self.deadline: float | None = None
        self.monitor: SimulatedMonitor | None = None
        self.timed_out = False
        self.urgency = 0.0


class SimulatedScheduler:
    """See `einc_runtime.execution.cpu.scheduler.ThreadScheduler`; `begin` makes it the scheduler of a new world."""

    def __init__(self) -> None:
        self._hub = greenlet(self._loop)
        self.begin(random.Random(0))

    def begin(self, rng: random.Random, *, max_threads: int = 99, interrupt: int | None = None) -> None:
        """Starts a world in which so many threads can be had, and the calling one is interrupted at this step."""
        self.rng, self.max_threads, self.interrupt = rng, max_threads, interrupt
        self.caller = SimulatedThread("caller", getcurrent())
        self.current = self.caller
        self.ready: list[SimulatedThread] = []
        self.asleep: list[SimulatedThread] = []
        self.threads = 0  # that have started and not ended, the calling one not counted
        self.time = 0.0
        self.steps = 0  # of all threads
        self.own_steps = 0  # of the calling one
        self.error: BaseException | None = None
        self.fault: str | None = None  # that has ended the world
        self.interrupted = False
        self.sticky = rng.choice((0.0, 0.5, 0.9))
        self.by_urgency = rng.random() < 0.4
        self.stalls = rng.choice((0.0, 0.02, 0.2))
        self.caller.urgency = rng.random()

    # What the product calls.

    def start(self, function: Callable[..., None], *arguments: object) -> None:
        self.step()
        if self.threads >= self.max_threads:
            raise RuntimeError("can't start new thread")

        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.error = self.error or error
            self.threads -= 1

        self.threads += 1
        thread = SimulatedThread(f"thread {self.threads}", greenlet(run, parent=self._hub))
        thread.urgency = self.rng.random()
        self.ready.append(thread)
        self.step()

    def make_monitor(self) -> SimulatedMonitor:
        return SimulatedMonitor(self)

    def now(self) -> float:
        self.time += 1e-7
        return self.time

    # What happens at a step.

    def step(self) -> None:
        """Lets the world go on, perhaps with another thread; the calling thread may be interrupted here."""
        self._require_going_on()
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.fault = "a hang: the run takes too many steps"
            raise Finding(self.fault)
        current, rng = self.current, self.rng
        self.time += 1e-6
        if current is self.caller:
            self.own_steps += 1
            if self.own_steps == self.interrupt:
                self.interrupted = True
                raise KeyboardInterrupt
        chance = rng.random()
        if chance < self.stalls:
            self.sleep(10 ** rng.uniform(-5, 0))
        elif chance < self.sticky or not self.ready:
            return
        else:
            self.ready.append(current)
            self._switch()

    def _require_going_on(self) -> None:
        if self.fault is not None:
            raise Finding(self.fault)

    def _end(self, fault: str) -> None:
        """Nothing happens any more in this world: whoever still tries gets the same finding."""
        self.fault = fault
        self.current = self.caller
        self.caller.fiber.throw(Finding(fault))

    def sleep(self, seconds: float) -> None:
        """Stalls the running thread, so that all others may overtake it."""
        self._require_going_on()
        self.current.deadline = self.time + seconds
        self.asleep.append(self.current)
        self._switch()

    def block(self) -> None:
        """Goes on with other threads until another one makes this thread ready."""
        self._require_going_on()
        self._switch()

    def _switch(self) -> None:
        """Goes on with a thread that is ready, and returns when the world goes on with this one."""
        thread = self.current
        self._hub.switch()
        if self.current is not thread:
            raise Finding("the world went on with another thread than it chose")

    def _loop(self) -> None:
        """Runs one thread after the other, for ever."""
        while True:
            if not self.ready:
                self._wake()
            ready = self.ready
            if self.by_urgency and self.rng.random() < 0.9:
                position = max(range(len(ready)), key=lambda k: ready[k].urgency)
            else:
                position = self.rng.randrange(len(ready))
            self.current = ready.pop(position)
            self.current.fiber.switch()

    def _wake(self) -> None:
        """Nothing is ready: lets the time pass until a stalled thread goes on. Only waiting threads are a finding."""
        if not self.asleep:
            return self._end("a hang: every thread waits for another one")
        thread = min(self.asleep, key=lambda sleeper: sleeper.deadline or 0.0)
        self.time = max(self.time, thread.deadline or 0.0)
        monitor = thread.monitor
        if monitor is not None:
            if all(sleeper.monitor is not None for sleeper in self.asleep):
                return self._end("a lost wake-up: all threads wait to be notified, and none is")
            fault = monitor.find_lost_notice()
            if fault is not None:
                return self._end(fault)
            monitor.waiting.remove(thread)
            thread.monitor, thread.timed_out = None, True
        self.asleep.remove(thread)
        thread.deadline = None
        self.ready.append(thread)
        return None


class SimulatedMonitor:
    """See `einc_runtime.execution.cpu.scheduler.Monitor`."""

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self.scheduler = scheduler
        self.holder: SimulatedThread | None = None
        self.depth = 0
        self.entering: list[SimulatedThread] = []
        self.waiting: list[SimulatedThread] = []
        self.owner: Any = None  # the object whose state it guards, which waits at it

    def __enter__(self) -> bool:
        self.scheduler.step()
        self._acquire(1)
        if self.scheduler.current is self.scheduler.caller:
            self.scheduler.step()  # an interrupt can come when the lock is taken and nothing says so yet
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()

    def _acquire(self, depth: int) -> None:
        current = self.scheduler.current
        while self.holder is not None and self.holder is not current:
            self.entering.append(current)
            self.scheduler.block()
        self.holder = current
        self.depth += depth

    def release(self) -> None:
        if self.holder is not self.scheduler.current:
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if self.depth == 0:
            self._let_in()

    def _let_in(self) -> None:
        self.holder = None
        self.scheduler.ready += self.entering
        self.entering.clear()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler, current = self.scheduler, self.scheduler.current
        if self.holder is not current:
            raise RuntimeError("cannot wait on un-acquired lock")
        self.owner = self.owner or sys._getframe(1).f_locals.get("self")
        depth, self.depth = self.depth, 0
        self._let_in()
        current.deadline = scheduler.time + (1e9 if timeout is None else timeout)
        current.monitor, current.timed_out = self, False
        self.waiting.append(current)
        scheduler.asleep.append(current)
        scheduler.block()
        self._acquire(depth)
        if current is scheduler.caller:
            scheduler.step()
        return not current.timed_out

    def notify(self, n: int = 1) -> None:
        if self.holder is not self.scheduler.current:
            raise RuntimeError("cannot notify on un-acquired lock")
        for thread in self.waiting[:n]:
            self.waiting.remove(thread)
            self.scheduler.asleep.remove(thread)
            thread.monitor = thread.deadline = None
            self.scheduler.ready.append(thread)

    def notify_all(self) -> None:
        self.notify(len(self.waiting))

    def find_lost_notice(self) -> str | None:
        """What is wrong if a thread that nobody has notified finds something to do when it looks by itself.

        Called where no thread is ready, so that nobody who was notified is on the way. A run that is interrupted will
        stop and need not tell the others what is ready.
        """
        state = self.owner
        if state is None or self.holder is not None or self.scheduler.interrupted or state.stopped or not state.large:
            return None
        return "a lost wake-up: a thread sleeps while a large task is ready"
