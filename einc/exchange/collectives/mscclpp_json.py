"""MSCCL++'s execution plans: JSON with the thread blocks of every GPU, which put, get, signal and wait.

What an operation reads and writes are lists of places, in buffers of its own GPU or of `remote_buffers`; channels are
pairs of GPUs, the n-th of one with the n-th of the other. A `wait` takes one `signal` of its channel.
`mscclpp_operations.py` reads the operations.

Where thread blocks share chunks (`tbg_info`), or a pipeline goes over them in rounds, chunks are split: the algorithm
then counts in parts of the file's chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import (
    MAX_ALGORITHM_STEPS,
    MAX_ALGORITHM_TEXT,
    MAX_RANKS,
    Channel,
    CollectiveAlgorithm,
    Step,
    check_slots,
    make_collective,
)
from einc.exchange.collectives.mscclpp_operations import ROUNDS, GpuReader, JsonValue, Splitting, read_channels
from einc_runtime.strict_json import parse_json

_MAX_SPLITS = 64
"""Parts of a chunk: groups of up to 32 thread blocks, in a pipeline."""


def read_mscclpp_json(text: str, file: str) -> CollectiveAlgorithm:
    """The algorithm of a text. Raises ProgramError, with its place, for anything that is none or is not read."""
    if len(text) > MAX_ALGORITHM_TEXT:
        raise ProgramError(f"the text has more than {MAX_ALGORITHM_TEXT // 2**20} Mi characters", where=file)
    try:
        document = parse_json(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ProgramError(str(error), where=file) from None
    root = JsonValue(document, f"{file}: ")
    gpus = root.get_rows("gpus")
    if not 1 <= len(gpus) <= MAX_RANKS:
        raise ProgramError(f"{len(gpus)} GPUs; from 1 to {MAX_RANKS} are possible", where=file)
    for rank, gpu in enumerate(gpus):
        if gpu.get("id", int) != rank:
            raise gpu.refuse(f"gpu {gpu.get('id', int)} stands where gpu {rank} should")
    kind = root.get("collective", str)
    count_field = "output_chunks" if kind == "allgather" else "input_chunks"
    chunks = gpus[0].get(count_field, int)
    splitting = _find_splitting(root, gpus)
    make_collective(kind, len(gpus), chunks, root.get("inplace", bool), file)
    parts = chunks * splitting.parts
    collective = make_collective(kind, len(gpus), parts, root.get("inplace", bool), file)
    for gpu in gpus:
        if gpu.get(count_field, int) != chunks:
            raise gpu.refuse(f"{count_field} is {gpu.get(count_field, int)}, and {chunks} on gpu 0")
    channels = [read_channels(gpu, len(gpus)) for gpu in gpus]
    steps: list[Step] = []
    tokens: list[tuple[Channel, int]] = []
    for rank, gpu in enumerate(gpus):
        reader = GpuReader(gpu, rank, channels[rank], len(gpus), splitting)
        steps += reader.read()
        tokens += reader.tokens
        if len(steps) > MAX_ALGORITHM_STEPS:
            raise ProgramError(f"the plan has more than {MAX_ALGORITHM_STEPS:,} operations", where=file)
    scratch = tuple(gpu.get("scratch_chunks", int, 0) * splitting.parts for gpu in gpus)
    name = document.get("name") if isinstance(document, dict) else None
    algorithm = CollectiveAlgorithm(
        str(name or "")[:200], collective, scratch, tuple(steps), file, tuple(tokens), splitting.parts
    )
    check_slots(algorithm)
    return algorithm


def _find_splitting(root: JsonValue, gpus: list[JsonValue]) -> Splitting:
    """Into how many parts chunks are split, and whether the rounds of pipelines use the same scratch memory."""
    groups, has_pipeline = 1, False
    for operation in _list_operations(gpus):
        if operation.has("tbg_info"):
            size = operation.get_object("tbg_info").get("tbg_size", int)
            if size < 1:
                raise operation.refuse(f"a group of {size} thread blocks")
            groups = math.lcm(groups, size)
            if groups > _MAX_SPLITS:
                raise operation.refuse(f"chunks in more than {_MAX_SPLITS} parts")
        has_pipeline = has_pipeline or operation.get("name", str) == "pipeline"
    reuses = has_pipeline and root.get("reuse_resources", bool, False)
    return Splitting(groups, ROUNDS if has_pipeline else 1, reuses)


def _list_operations(gpus: list[JsonValue]) -> Iterator[JsonValue]:
    for gpu in gpus:
        for block in gpu.get_rows("threadblocks"):
            for operation in block.get_rows("ops"):
                yield operation
                if operation.get("name", str) == "pipeline":
                    yield from operation.get_rows("ops")
