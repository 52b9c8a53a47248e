"""Memory that sessions of several plans have together: weights and states of the same blocks lie in one place.

It is for plans of one model, such as one that reads prompts and one that makes tokens. Weights are the same if they
have the same name in files, and states if they have the same name. Executors of the CPU share
arrays, and those of GPUs blocks on devices (`cuda/shared_memory`).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from einc_runtime.plan.regions import is_loaded
from einc_runtime.plan.schema import Block, Bundle
from einc_runtime.plan.states import STATE

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array

BufferKey = tuple[str, str, str, tuple[int, ...], Block, int]
"""Kind, name, element type and shape of a tensor, a block of it, and a number among equal blocks of a state."""


class Watcher(Protocol):
    """What is made of shared weights, and has to be made again when they change."""

    def mark_changed(self, weights: Array) -> None: ...


@dataclass(slots=True)
class SharedBuffers:
    """The arrays by their keys, and those that have been loaded. `prepack` says whether sessions may make other layouts
    of weights, which take as much memory again. `watchers` are told of an array that is loaded again. `on_devices` is
    what sessions have on GPUs."""

    prepack: bool = True
    arrays: dict[BufferKey, Array] = field(default_factory=dict)
    loaded: set[BufferKey] = field(default_factory=set)
    watchers: weakref.WeakSet[Watcher] = field(default_factory=weakref.WeakSet)
    on_devices: object | None = None

    def mark_loaded(self, key: BufferKey, array: Array) -> None:
        """Says that this array has other values now."""
        self.loaded.add(key)
        for watcher in list(self.watchers):
            watcher.mark_changed(array)


def list_shared(bundle: Bundle) -> Iterator[tuple[int, BufferKey]]:
    """The buffers of a plan that it may share, with their keys: equal keys of one plan are the same weights."""
    seen: Counter[BufferKey] = Counter()
    for number, buffer in enumerate(bundle.buffers):
        tensor = bundle.tensors[buffer.tensor]
        if tensor.kind in ("weight", STATE) and is_loaded(bundle, number):
            name = tensor.name if tensor.stored is None else tensor.stored
            key: BufferKey = (tensor.kind, name, tensor.dtype, tensor.shape, buffer.block, 0)
            seen[key] += 1
            yield number, (*key[:-1], seen[key] - 1 if tensor.kind == STATE else 0)
