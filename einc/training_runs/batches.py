"""The samples of each step: rows of arrays, or stretches of a text of tokens, from untrusted .npy files.

Which samples a step gets follows from the seed and the number of the step alone, by a generator that counts (Philox):
each epoch goes through all samples once, in an order of its own. So a run that goes on from a checkpoint sees what it
would have seen, and every process of a run draws the same samples without sending any.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from einc.core.tensor import Array
from einc_runtime.errors import ArrayFault, UsageFault
from einc_runtime.execution.data.npy import NpyFile
from einc_runtime.plan.schema import Bundle, Tensor
from einc_runtime.text import quote_names

IDS, TARGETS = "ids", "targets"
"""The inputs that a text of tokens is for: tokens, and the token after each of them."""
FINGERPRINT_BLOCKS, FINGERPRINT_BYTES = 64, 1 << 16
"""Of a file of data, so many blocks of so many bytes tell whether it is the same: 4 MiB are read in no time."""
LENGTH_ATTRIBUTES = ("q_lens", "seq_lens")
"""Attributes of operations that say how long packed sequences are."""
MAX_SAMPLES = 1 << 28
"""Samples of an epoch, whose order is in memory: 2 GiB."""


class Batches(Protocol):
    """Where the inputs of steps come from. `fingerprint` tells whether the data is the same, in 32 bytes."""

    @property
    def fingerprint(self) -> bytes: ...

    def draw(self, step: int) -> dict[str, Array]:
        """The inputs of a step, which counts from 1. Raises ArrayFault for data that no input takes."""


class TokenBatches:
    """Stretches of a text: `count` of them in a step, each of `length` tokens, and the tokens that follow each."""

    def __init__(self, path: str, ids: Tensor, length: int, seed: int) -> None:
        self._path, self._ids, self._length, self._seed = path, ids, length, seed
        self._tokens = map_array(path)
        if self._tokens.ndim != 1 or self._tokens.dtype.kind != "i":
            described = f"{self._tokens.dtype}{list(self._tokens.shape)}"
            raise ArrayFault(f"expected a text of tokens, i32 or i64 in one dimension, found {described}", where=path)
        self._count = int(np.prod(ids.shape)) // length
        self._samples = (len(self._tokens) - 1) // length
        if self._samples < 1:
            message = f"it has {len(self._tokens)} tokens, and a sample takes {length + 1}"
            raise ArrayFault(message, where=path, hint="give more tokens, or compile a step for shorter sequences")
        _require_batch(self._samples, self._count, f"samples of {length} tokens", path)
        self.fingerprint = make_fingerprint([path])

    def draw(self, step: int) -> dict[str, Array]:
        samples = choose_samples(self._seed, self._samples, self._count, step)
        texts = np.stack([self._tokens[s * self._length : (s + 1) * self._length + 1] for s in samples])
        if texts.min() < 0:
            raise ArrayFault(f"it has the token {texts.min()}, and tokens are 0 or more", where=self._path)
        dtype = np.int64 if self._ids.dtype == "i64" else np.int32
        return {
            IDS: texts[:, :-1].astype(dtype).reshape(self._ids.shape),
            TARGETS: texts[:, 1:].astype(dtype).reshape(self._ids.shape),
        }


class RowBatches:
    """Rows of arrays, which have as many: those of a step along the first dimension of each input."""

    def __init__(self, paths: Mapping[str, str], inputs: Mapping[str, Tensor], seed: int) -> None:
        self._seed = seed
        self._arrays = {name: map_array(path) for name, path in paths.items()}
        self._inputs = inputs
        rows, counts = {len(a) if a.ndim else 0 for a in self._arrays.values()}, set()
        for name, array in self._arrays.items():
            tensor = inputs[name]
            counts.add(tensor.shape[0] if tensor.shape else 0)
            if not tensor.shape or array.shape[1:] != tensor.shape[1:] or not _fits(array, tensor.dtype):
                expected = f"rows of {tensor.dtype}{list(tensor.shape[1:])}"
                message = f"expected {expected} for input '{name}', found {array.dtype}{list(array.shape)}"
                raise ArrayFault(message, where=paths[name])
        if len(rows) > 1 or len(counts) > 1:
            raise ArrayFault(f"arrays of one run have as many rows, and {quote_names(list(paths))} have not")
        self._samples, self._count = rows.pop(), counts.pop()
        if self._samples < 1 or self._samples > MAX_SAMPLES:
            raise ArrayFault(f"an array of 1 to {MAX_SAMPLES:,} rows is expected, found {self._samples:,}")
        _require_batch(self._samples, self._count, "rows", paths[next(iter(paths))])
        self.fingerprint = make_fingerprint([paths[name] for name in sorted(paths)])

    def draw(self, step: int) -> dict[str, Array]:
        rows = choose_samples(self._seed, self._samples, self._count, step)
        return {name: np.ascontiguousarray(array[rows]) for name, array in self._arrays.items()}


def _require_batch(samples: int, count: int, unit: str, path: str) -> None:
    """Raises ArrayFault where every step would get some samples twice."""
    if samples < count:
        hint = f"give {count:,} or more, or compile a step with a smaller batch"
        message = f"it has {samples:,} {unit}, and a step takes {count:,}: it would get some of them twice"
        raise ArrayFault(message, where=path, hint=hint)


def open_batches(bundle: Bundle, arguments: Sequence[str], seed: int, length: int | None = None) -> Batches:
    """What arguments name: `FILE.npy`, a text of tokens, or `NAME=FILE.npy` for each input.

    Raises UsageFault for arguments that do not fit the plan, ArrayFault for unfit files, and OSError.
    """
    inputs = {tensor.name: tensor for tensor in bundle.tensors if tensor.kind == "input"}
    named = dict(text.split("=", 1) for text in arguments if "=" in text and text.split("=", 1)[0] in inputs)
    if len(named) == len(arguments):
        return RowBatches(named, inputs, seed)
    if len(arguments) != 1 or named:
        hint = f"give one text of tokens, or NAME=FILE.npy; the plan's inputs are {quote_names(list(inputs))}"
        raise UsageFault(f"the data {' '.join(arguments)[:200]} does not say what it is for", hint=hint)
    if IDS not in inputs or TARGETS not in inputs or inputs[IDS].shape != inputs[TARGETS].shape:
        hint = f"the plan's inputs are {quote_names(list(inputs))}: give NAME=FILE.npy for each"
        raise UsageFault(f"a text of tokens is for inputs '{IDS}' and '{TARGETS}' of one shape", hint=hint)
    ids = inputs[IDS]
    length = length or find_length(bundle, ids)
    if int(np.prod(ids.shape)) % length:
        raise UsageFault(f"the {int(np.prod(ids.shape))} tokens of a step are no whole number of {length} tokens")
    return TokenBatches(arguments[0], ids, length, seed)


def find_length(bundle: Bundle, ids: Tensor) -> int:
    """How long the sequences of a step are: a row of `ids`, or what attention says of packed ones, or all of it."""
    if len(ids.shape) > 1:
        return ids.shape[-1]
    total = int(np.prod(ids.shape))
    for operation in bundle.operations:
        for name in LENGTH_ATTRIBUTES:
            lengths = operation.attributes.get(name)
            if isinstance(lengths, list) and len({*lengths}) == 1 and sum(map(int, lengths)) == total:
                return int(lengths[0])
    return total


def choose_samples(seed: int, samples: int, count: int, step: int) -> Array:
    """The numbers of the samples of a step: the next `count` of all epochs' orders, one after another."""
    first = (step - 1) * count
    parts, at = [], first
    while at < first + count:
        epoch, start = divmod(at, samples)
        taken = min(samples - start, first + count - at)
        parts.append(_shuffle(seed, samples, epoch)[start : start + taken])
        at += taken
    return np.concatenate(parts)


@lru_cache(maxsize=2)
def _shuffle(seed: int, samples: int, epoch: int) -> Array:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(samples)


def map_array(path: str) -> Array:
    """The array of a .npy file, which stays on the disk. Raises ArrayFault for what is not exactly such a file."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        header = NpyFile(stream, path, size).read_header()
        if size != header.size + header.bytes:
            fault = "has bytes after the array" if size > header.size + header.bytes else "is cut short"
            raise ArrayFault(
                f"it {fault}: {size} bytes, where its header says {header.size + header.bytes}", where=path
            )
        if not header.bytes:
            raise ArrayFault(f"it has no elements: {list(header.shape)}", where=path)
        order = "F" if header.fortran else "C"
        return np.memmap(stream, header.dtype, "r", header.size, header.shape, order)  # type: ignore[call-overload,no-any-return]


def make_fingerprint(paths: Sequence[str]) -> bytes:
    """What tells files from others: their sizes, and blocks of them at even distances."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(b"%d:" % size)
            for block in range(FINGERPRINT_BLOCKS):
                stream.seek(max(0, size - FINGERPRINT_BYTES) * block // (FINGERPRINT_BLOCKS - 1))
                digest.update(stream.read(FINGERPRINT_BYTES))
    return digest.digest()


def _fits(array: Array, dtype: str) -> bool:
    kinds = {"f": "f", "b": "f" if dtype == "bf16" else "b", "i": "i"}
    return array.dtype.kind == kinds[dtype[0]]
