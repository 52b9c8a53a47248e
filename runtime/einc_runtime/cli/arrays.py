"""Reads and writes the arrays that arguments of `run` name: `x.npy`, `NAME=x.npy`, `all.npz`, `NAME=rand:SEED`.

With `--shards`, results are written where they are: each process its blocks, as one file of a set of safetensors files
with an index. No process has a whole result in memory. A block that is a whole tensor has its name; others have names
such as `y[0:192, 192:384]`, which say where they lie (`execution.data.parts`). Where several processes have one block,
each writes it, and the index has the first one's file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from einc_runtime.cli import files, output
from einc_runtime.errors import ArrayFault, UsageFault, WriteFault
from einc_runtime.execution.data.parts import name_block
from einc_runtime.execution.data.safetensors import SUFFIX, write_tensors
from einc_runtime.text import quote_names, suggest_name

if TYPE_CHECKING:
    from einc_runtime.cli.ranks import World
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle, Tensor


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """One argument, parsed: the tensor that it names, or None, and its file or `rand:SEED`."""

    name: str | None
    source: str

    @property
    def is_random(self) -> bool:
        return self.source.startswith("rand:")

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive of several arrays, each with its name."""
        return self.name is None and self.source.endswith(".npz")


def parse_arguments(arguments: Sequence[str]) -> list[ArrayArgument]:
    """Parses `NAME=FILE` and `FILE`. A name must be an identifier, as paths may contain `=`; `rand` is `rand:0`."""
    parsed = []
    for text in arguments:
        name, equals, source = text.partition("=")
        named = bool(equals) and name.replace(".", "_").isidentifier() and bool(source)
        file = source if named else text
        parsed.append(ArrayArgument(name if named else None, "rand:0" if file == "rand" else file))
    return parsed


def assign_arguments(arguments: Sequence[ArrayArgument], names: Sequence[str], role: str) -> dict[str, ArrayArgument]:
    """The argument for each tensor, for arguments of one array each.

    A file without a name is for the tensor whose name it has, or for the only one there is.
    """
    table: dict[str, ArrayArgument] = {}
    for argument in arguments:
        name = argument.name or _infer_name(argument.source, names, role)
        require_known(name, names, role)
        if name in table:
            raise ArrayFault(f"{role} '{name}' is given twice", where=argument.source)
        table[name] = argument
    return table


def _infer_name(source: str, names: Sequence[str], role: str) -> str:
    stem = os.path.splitext(os.path.basename(source))[0]
    if stem in names:
        return stem
    if len(names) == 1:
        return names[0]
    hint = f"write NAME={source}; the plan's {role}s are {quote_names(names)}"
    raise UsageFault(f"it does not say which {role} it is for", where=source, hint=hint)


def require_known(name: str, names: Sequence[str], role: str) -> None:
    """Raises where the plan has no such tensor, with the most similar name as a hint."""
    if name not in names:
        raise ArrayFault(f"the plan has no {role} '{name}'", hint=suggest_name(name, names))


def read_inputs(bundle: Bundle, arguments: Sequence[str]) -> dict[str, Array]:
    """The array of every input that is given or needed.

    Raises ArrayFault where one that is needed is missing, and where one is given twice, unknown, or does not fit.
    """
    from einc_runtime.execution.data.random_arrays import make_random_array, parse_seed
    from einc_runtime.plan.regions import find_needed_tensors

    needed = [bundle.tensors[number].name for number in sorted(find_needed_tensors(bundle))]
    tensors = {tensor.name: tensor for tensor in bundle.tensors if tensor.kind == "input"}
    parsed = parse_arguments(arguments)
    for_all_others = [argument for argument in parsed if argument.is_random and argument.name is None]
    if len(for_all_others) > 1:
        raise UsageFault("rand:SEED without a name is given twice")
    arrays = read_arrays([argument for argument in parsed if argument not in for_all_others], tensors, "input")
    for name in needed:
        if for_all_others and name in tensors and name not in arrays:
            arrays[name] = make_random_array(tensors[name], parse_seed(for_all_others[0].source))
    missing = [name for name in needed if name in tensors and name not in arrays]
    if missing:
        hint = f"--inputs {missing[0]}=FILE.npy, or --inputs {missing[0]}=rand:0"
        raise ArrayFault(f"nothing is given for input {quote_names(missing)}", hint=hint)
    return arrays


def read_weight_arrays(bundle: Bundle, arguments: Sequence[str]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The weights that are given one by one, as .npy files or folders of them, and the sources of all others.

    Raises ArrayFault for a weight that is unknown, given twice or unfit.
    """
    from einc_runtime.execution.data.weights import list_weights

    tensors = {tensor.name: tensor for tensor in list_weights(bundle)}
    parsed: list[ArrayArgument] = []
    sources: list[str] = []
    for argument in parse_arguments(arguments):
        arrays_of_folder = _list_arrays(argument, tensors)
        if arrays_of_folder:
            parsed += arrays_of_folder
        elif argument.name is not None or argument.source.endswith(".npy"):
            parsed.append(argument)
        else:
            sources.append(argument.source)
    return read_arrays(parsed, tensors, "weight", rounded=True), tuple(sources)


def _list_arrays(argument: ArrayArgument, tensors: Mapping[str, Tensor]) -> list[ArrayArgument]:
    """The .npy files of a folder without other files of weights, each for the weight whose name it has."""
    if argument.name is not None or not os.path.isdir(argument.source):
        return []
    entries = sorted(os.listdir(argument.source))
    if any(entry.endswith((".safetensors", ".safetensors.index.json")) for entry in entries):
        return []
    named = [(entry.removesuffix(".npy"), entry) for entry in entries if entry.endswith(".npy")]
    return [ArrayArgument(name, os.path.join(argument.source, entry)) for name, entry in named if name in tensors]


def make_missing_fault(tensors: Sequence[Tensor], partial: bool, bundle: Bundle) -> ArrayFault:
    """That these weights are missing: all of a plan, or some beside others."""
    names = quote_names([tensor.name for tensor in tensors])
    missing = f"weight {names}" if partial else f"the {len(tensors)} weights of {bundle.model}"
    return ArrayFault(f"nothing is given for {missing}", hint="--weights FILE.safetensors, or --weights rand:0")


def read_expected(bundle: Bundle, arguments: Sequence[str]) -> dict[str, Array]:
    """The expected arrays of those outputs for which some are given."""
    tensors = {bundle.tensors[output.tensor].name: bundle.tensors[output.tensor] for output in bundle.outputs}
    return read_arrays(parse_arguments(arguments), tensors, "output")


def read_arrays(
    parsed: Sequence[ArrayArgument], tensors: Mapping[str, Tensor], role: str, rounded: bool = False
) -> dict[str, Array]:
    """The given arrays, each in its tensor's type. Raises ArrayFault where one is unknown, given twice or unfit.

    `rounded` takes files of f32 for any type of floats.
    """
    from einc_runtime.execution.data.npy import read_npy, read_npz
    from einc_runtime.execution.data.random_arrays import make_random_array, parse_seed

    arrays: dict[str, Array] = {}
    for name, argument in assign_arguments(
        [argument for argument in parsed if not argument.is_archive], list(tensors), role
    ).items():
        if argument.is_random:
            arrays[name] = make_random_array(tensors[name], parse_seed(argument.source))
            continue
        files.require_present(argument.source)
        with files.reading(argument.source):
            arrays[name] = read_npy(argument.source, tensors[name], rounded)
    for argument in parsed:
        if argument.is_archive:
            files.require_present(argument.source)
            with files.reading(argument.source):
                members = read_npz(argument.source, tensors)
            twice = [name for name in members if name in arrays]
            if twice:
                raise ArrayFault(f"{role} {quote_names(twice)} is given twice", where=argument.source)
            arrays |= members
    return arrays


def write_outputs(arguments: Sequence[str], arrays: Mapping[str, Array]) -> None:
    """Write outputs as the arguments say: one array as .npy, all of them as .npz."""
    import numpy as np

    parsed = parse_arguments(arguments)
    for name, argument in assign_arguments(
        [output_argument for output_argument in parsed if not output_argument.is_archive], list(arrays), "output"
    ).items():
        output.write_file(argument.source, _make_npy_writer(_storable(arrays[name])))
    for argument in parsed:
        if argument.is_archive:
            stored = {name: _storable(array) for name, array in arrays.items()}

            def write(stream: BinaryIO, stored: dict[str, Array] = stored) -> None:
                np.savez(stream, **stored)  # type: ignore[arg-type]

            output.write_file(argument.source, write)


def check_outputs(bundle: Bundle, arguments: Sequence[str], trace: str | None, read: Sequence[str | None]) -> None:
    """Raises before any work where an output is not in the plan, cannot be written, or would replace an input.

    `read` are the arguments that name what the command reads.
    """
    names = [bundle.tensors[out.tensor].name for out in bundle.outputs]
    parsed = parse_arguments(arguments)
    assign_arguments([argument for argument in parsed if not argument.is_archive], names, "output")
    targets = [argument.source for argument in parsed] + ([] if trace is None else [trace])
    output.require_outputs(targets, [argument.source for argument in parse_arguments([path for path in read if path])])


def _storable(array: Array) -> Array:
    """The array as numpy files can hold it: bf16 is widened to f32."""
    import numpy as np

    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def _make_npy_writer(array: Array) -> Any:
    import numpy as np

    def write(stream: BinaryIO) -> None:
        # numpy asks files for their position, which pipes do not have.
        into = stream if stream.seekable() else SimpleNamespace(write=stream.write)
        np.lib.format.write_array(into, np.ascontiguousarray(array), allow_pickle=False)

    return write


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
