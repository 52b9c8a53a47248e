"""Writes results where they are: each process its blocks, as one file of a set of safetensors files with an index.

No process has a whole result in memory. A block that is a whole tensor has its name; others have names such as
`y[0:192, 192:384]`, which say where they lie (`execution.data.parts`). Where several processes have one block, each
writes it, and the index has the first one's file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

import click

from einc_runtime.cli import output
from einc_runtime.errors import WriteFault
from einc_runtime.execution.data.parts import name_block
from einc_runtime.execution.data.safetensors import SUFFIX, write_tensors

if TYPE_CHECKING:
    from einc_runtime.cli.ranks import World
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.session import Session

INDEX_SUFFIX = ".index.json"


def require_target(targets: Sequence[str], compared: bool, read: Sequence[str | None]) -> str:
    """The one target of the shards. Raises UsageError, and WriteFault where its folder is not there."""
    if len(targets) != 1 or not targets[0].endswith(SUFFIX) or os.path.basename(targets[0]) == SUFFIX:
        raise click.UsageError(f"--shards writes one set of files: -o NAME{SUFFIX}")
    if compared:
        raise click.UsageError("--shards brings no results together: leave out --check and --expect")
    folder = os.path.dirname(targets[0]) or "."
    if not os.path.isdir(folder):
        raise WriteFault("cannot write: there is no such folder", where=folder)
    output.require_outputs([targets[0] + INDEX_SUFFIX], [path for path in read if path])
    return targets[0]


def write_shards(target: str, session: Session, world: World | None) -> None:
    """Every process writes its file; when all are there, rank 0 writes the index that names them."""
    number, count = (0, 1) if world is None else (world.links.rank, world.links.size)
    tensors = {tensor.name: tensor for tensor in session.outputs}
    blocks: dict[str, tuple[str, Array]] = {}
    for name, block, values in session.offload_own():
        tensor = tensors[name]
        blocks[name_block(name, block, tensor.shape)] = tensor.dtype, values
    file = f"{target.removesuffix(SUFFIX)}-{number + 1:05d}-of-{count:05d}{SUFFIX}"

    def write(stream: BinaryIO) -> None:
        write_tensors(stream, blocks)

    output.write_file(file, write)
    part = {"file": os.path.basename(file), "sizes": {name: array.nbytes for name, (_, array) in blocks.items()}}
    text = json.dumps(part).encode()
    parts = [json.loads(rank_text) for rank_text in ([text] if world is None else world.links.share(text))]
    if number == 0:
        index = {
            "metadata": {
                "total_size": sum(
                    {name: size for rank_part in parts for name, size in rank_part["sizes"].items()}.values()
                )
            },
            "weight_map": {name: rank_part["file"] for rank_part in reversed(parts) for name in rank_part["sizes"]},
        }
        document = json.dumps(index, indent=2, sort_keys=True) + "\n"
        output.write_file(target + INDEX_SUFFIX, lambda stream: stream.write(document.encode()))
