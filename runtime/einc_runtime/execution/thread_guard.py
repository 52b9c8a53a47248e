"""Keeps the threads that use one session apart: what one of them loaded is not computed with another's inputs.

Calls wait for one another. That alone is not enough, since loading, executing and offloading are calls of their own:
between them, another thread could load its inputs. So a thread that loads inputs takes the session over, unless those
of another thread have not been executed yet; and a thread from which it was taken is refused until it loads its own.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

from einc_runtime.errors import ArrayFault

_THREAD_HINT = "call run(), which loads, executes and offloads in one step, or make a session for each thread"


class ThreadGuard:
    """The contract of a session's threads; every method is called within `entered`, which one thread at a time is."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: threading.Thread | None = None
        self._waiting = False  # whether the owner's inputs have not been executed yet
        self._displaced: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # always without the owner

    def entered(self) -> AbstractContextManager[object]:
        return self._lock

    def take_over(self) -> None:
        """The calling thread loads inputs. Raises ArrayFault where those of another thread wait to be executed."""
        thread, owner = threading.current_thread(), self._owner
        if owner is not thread:
            if owner is not None and owner.is_alive():
                if self._waiting:
                    raise ArrayFault("another thread has loaded inputs that are not executed yet", hint=_THREAD_HINT)
                self._displaced.add(owner)
            self._displaced.discard(thread)
        self._owner, self._waiting = thread, True

    def require_own_inputs(self) -> None:
        """Raises ArrayFault where another thread has loaded inputs since the calling one did."""
        thread = threading.current_thread()
        if thread is not self._owner and thread in self._displaced:
            raise ArrayFault("another thread has loaded other inputs since this one did", hint=_THREAD_HINT)

    def mark_executed(self) -> None:
        self._waiting = False
