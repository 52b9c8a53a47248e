"""How `einc run` is given arrays and asked for them: `x.npy`, `NAME=x.npy`, `all.npz`, `NAME=rand:SEED`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from einc.cli import files, output
from einc.errors import UsageError
from runtime.errors import ArrayFault

if TYPE_CHECKING:
    import numpy as np

    from runtime.bundle import Bundle, Tensor

    Array = np.ndarray[Any, np.dtype[Any]]

RANDOM = "rand:"


@dataclass(frozen=True, slots=True)
class Request:
    """One argument, taken apart: the tensor it names (if it does) and its file, or the seed to draw from."""

    name: str | None
    source: str

    @property
    def seed(self) -> int | None:
        return parse_seed(self.source)

    @property
    def several(self) -> bool:
        """Whether the file holds any number of arrays, each under its name."""
        return self.name is None and self.source.endswith(".npz")


def parse_seed(source: str) -> int | None:
    """The SEED of `rand:SEED`, or None for anything else."""
    if not source.startswith(RANDOM):
        return None
    digits = source.removeprefix(RANDOM)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"'{source}' names no seed: write rand:0")
    return int(digits)


def requests(arguments: Sequence[str]) -> list[Request]:
    """Takes `NAME=FILE` and `FILE` apart; a name is an identifier, so that paths may contain `=`."""
    found = []
    for argument in arguments:
        name, equals, source = argument.partition("=")
        named = bool(equals) and name.replace(".", "_").isidentifier() and bool(source)
        found.append(Request(name, source) if named else Request(None, argument))
    return found


def inputs_of(bundle: Bundle) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in bundle.tensors if tensor.kind == "input"}


def assign(asked: Sequence[Request], names: Sequence[str], what: str) -> dict[str, Request]:
    """Which request serves which tensor, for requests of one array each.

    A file alone serves the tensor of its name, or the only one there is.
    """
    table: dict[str, Request] = {}
    for request in asked:
        name = request.name or _implied(request.source, names, what)
        require_known(name, names, what)
        if name in table:
            raise ArrayFault(f"{what} '{name}' is given twice", where=request.source)
        table[name] = request
    return table


def _implied(source: str, names: Sequence[str], what: str) -> str:
    stem = os.path.splitext(os.path.basename(source))[0]
    if stem in names:
        return stem
    if len(names) == 1:
        return names[0]
    hint = f"write NAME={source}; the plan's {what}s are {_listed(names)}"
    raise UsageError(f"it does not say which {what} it is for", where=source, hint=hint)


def require_known(name: str, names: Sequence[str], what: str) -> None:
    """Raise where the plan has no such tensor, with the nearest name as a hint."""
    import difflib

    if name not in names:
        close = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean '{close[0]}'?" if close else f"its {what}s are {_listed(names)}"
        raise ArrayFault(f"the plan has no {what} '{name}'", hint=hint)


def read_inputs(bundle: Bundle, arguments: Sequence[str]) -> dict[str, Array]:
    """The array of every input. Raises ArrayFault where one is missing, given twice, unknown, or unfit."""
    from runtime.arrays import random_input

    wanted = inputs_of(bundle)
    asked = requests(arguments)
    arrays = read_arrays([request for request in asked if request.seed is None], wanted, "input")
    everything = [request for request in asked if request.seed is not None and request.name is None]
    drawn = assign([r for r in asked if r.seed is not None and r.name is not None], list(wanted), "input")
    for name in drawn:
        if name in arrays:
            raise ArrayFault(f"input '{name}' is given twice")
    for name, request in drawn.items():
        assert request.seed is not None
        arrays[name] = random_input(wanted[name], request.seed)
    if len(everything) > 1:
        raise UsageError("rand:SEED without a name is given twice")
    for name, tensor in wanted.items():
        if everything and name not in arrays:
            assert everything[0].seed is not None
            arrays[name] = random_input(tensor, everything[0].seed)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        hint = f"--inputs {missing[0]}=FILE.npy, or --inputs {missing[0]}=rand:0"
        raise ArrayFault(f"nothing is given for input {_listed(missing)}", hint=hint)
    return arrays


def read_arrays(asked: Sequence[Request], wanted: Mapping[str, Tensor], what: str) -> dict[str, Array]:
    """Arrays from files, each checked against its tensor."""
    from runtime.arrays import read_npy, read_npz

    arrays: dict[str, Array] = {}
    names = list(wanted)
    single = assign([request for request in asked if not request.several], names, what)
    for name, request in single.items():
        files.require_present(request.source)
        with files.reading(request.source):
            arrays[name] = read_npy(request.source, wanted[name])
    for request in asked:
        if request.several:
            files.require_present(request.source)
            with files.reading(request.source):
                for name, array in read_npz(request.source, wanted).items():
                    if name in arrays:
                        raise ArrayFault(f"{what} '{name}' is given twice")
                    arrays[name] = array
    return arrays


def write_outputs(bundle: Bundle, arguments: Sequence[str], arrays: Mapping[str, Array]) -> None:
    """Write outputs as asked: one array as .npy, all of them as .npz."""
    import numpy as np

    asked = requests(arguments)
    for name, request in assign([r for r in asked if not r.several], list(arrays), "output").items():
        output.write_file(request.source, _npy_writer(storable(arrays[name])))
    for request in asked:
        if request.several:
            stored = {name: storable(array) for name, array in arrays.items()}

            def write(stream: BinaryIO, stored: dict[str, Array] = stored) -> None:
                np.savez(stream, **stored)  # type: ignore[arg-type]

            output.write_file(request.source, write)


def check_outputs(bundle: Bundle, arguments: Sequence[str]) -> None:
    """Raise before any work where the outputs asked for do not exist or cannot be written."""
    names = [bundle.tensors[out.tensor].name for out in bundle.outputs]
    asked = requests(arguments)
    assign([request for request in asked if not request.several], names, "output")
    for request in asked:
        output.require_writable(request.source)


def storable(array: Array) -> Array:
    """The array as numpy files can hold it: bf16 is widened to f32."""
    import numpy as np

    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def _npy_writer(array: Array) -> Any:
    import numpy as np

    return lambda stream: np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)


def _listed(names: Sequence[str]) -> str:
    shown = [f"'{name}'" for name in names[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
