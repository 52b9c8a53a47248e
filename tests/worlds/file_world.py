"""A world of files: one is written over an older one, something goes wrong, and what there is then is read."""

from __future__ import annotations

import errno
import functools
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from einc_runtime.cli.arrays import _make_npy_writer
from einc_runtime.disk import Disk, replace_file
from einc_runtime.errors import ArrayFault, PlanFault
from einc_runtime.execution.data.npy import NpyFile, NpzFile
from einc_runtime.plan.codec import _read_stream, encode
from einc_runtime.plan.schema import Tensor
from tests.worlds.plans import make_plan
from tests.worlds.simulated_disk import FaultyReader, SimulatedDisk, StoredFile
from tests.worlds.simulation import Finding

TARGET = Path("/world/result")
FAULTS = ("none", "error", "error", "short", "crash", "crash", "crash", "interrupt", "late interrupt")
TENSORS = {name: Tensor(name, ("i", "j"), (3, 7), "f32", "input") for name in ("a", "b")}


class FileWorlds:
    """Runs worlds. `replace` is what is tested: `einc_runtime.disk.replace_file`, or one with a bug."""

    def __init__(self, replace: Callable[[Path, Callable[[BinaryIO], object], Disk], None] = replace_file) -> None:
        self._replace = replace

    def run(self, seed: int) -> str:
        """Runs the world of a seed and says which fault it had. Raises Finding."""
        rng = random.Random(seed)
        kind = rng.choice(("plan", "npy", "npz"))
        old, new = (_make_file(kind, rng.randrange(12)) for _ in range(2))
        fault = rng.choice(FAULTS)
        disk = SimulatedDisk(rng, fault, int(2 ** rng.uniform(0, 6)))
        older = rng.random() < 0.7
        if older:
            disk.files[TARGET] = StoredFile()
            disk.files[TARGET].data = disk.files[TARGET].synced = old.data
        error: BaseException | None = None
        try:
            self._replace(TARGET, new.write, disk)
        except BaseException as caught:
            error = caught
        before = old.data if older else None
        if fault == "crash":  # now, if not before
            content = disk.restart().get(TARGET)
            if content not in (before, new.data):
                raise Finding(f"half a {kind} has the final name after a crash")
            return fault
        content = disk.files[TARGET].data if TARGET in disk.files else None
        if error is None:
            if content != new.data:
                raise Finding(f"the {kind} is written without an error, and is another one")
        elif not isinstance(error, OSError | KeyboardInterrupt):
            raise Finding(f"{type(error).__name__}: {error}") from error
        elif content not in ((before,) if isinstance(error, OSError) else (before, new.data)):
            raise Finding(f"half a {kind} has the final name after {error!r}")
        if set(disk.files) - {TARGET}:
            raise Finding(f"a temporary file is left after {error!r}")
        if content is not None:
            self._read(new if content == new.data else old, rng)
        return fault

    def _read(self, file: ExampleFile, rng: random.Random) -> None:
        """Reads a file that may be cut, damaged or unreadable: it is read as it was written, or refused."""
        data, fails_at, damage = file.data, None, rng.choice(("none", "none", "cut", "torn", "fails"))
        if damage == "cut":
            data = data[: rng.randrange(len(data))]
        elif damage == "torn":
            at = rng.randrange(len(data))
            data = data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]
        elif damage == "fails":
            fails_at = rng.randrange(1, 12)
        stream: Any = io.BufferedReader(FaultyReader(data, rng, fails_at), rng.choice((16, 512, 8192)))
        try:
            right = file.read(stream, len(data))
        except (ArrayFault, PlanFault) as error:
            if data == file.data and fails_at is None:
                raise Finding(f"a {file.kind} is refused although nothing is wrong: {error}") from error
            return
        except OSError as error:
            if fails_at is None or error.errno != errno.EIO:
                raise Finding(f"a {file.kind} is not read, by {error!r}") from error
            return
        if not right and not (file.kind == "npy" and damage == "torn"):  # an npy file has no checksum
            raise Finding(f"a {file.kind} that is {damage} is read as another one")


class ExampleFile:
    """A file of the product: how it is written, its bytes, and whether a stream gives the same."""

    def __init__(self, kind: str, write: Callable[[BinaryIO], object], read: Callable[[Any, int], bool]) -> None:
        self.kind, self.write, self.read = kind, write, read
        stream = io.BytesIO()
        write(stream)
        self.data = stream.getvalue()


@functools.cache
def _make_file(kind: str, number: int) -> ExampleFile:
    rng = np.random.default_rng(number)
    arrays = {name: rng.standard_normal((3, 7)).astype("f4") for name in TENSORS}
    if kind == "plan":
        bundle = make_plan(number)
        return ExampleFile(kind, lambda stream: stream.write(encode(bundle)), lambda s, _: _read_stream(s) == bundle)
    if kind == "npy":

        def read_npy(stream: Any, length: int) -> bool:
            return np.array_equal(NpyFile(stream, "x.npy", length).read(TENSORS["a"]), arrays["a"])

        return ExampleFile(kind, _make_npy_writer(arrays["a"]), read_npy)

    def read_npz(stream: Any, length: int) -> bool:
        with NpzFile.of(stream, "x.npz") as archive:
            results = {name: archive.read(name, TENSORS[name]) for name in archive.members if name in TENSORS}
        if results.keys() != arrays.keys():
            raise ArrayFault("something is missing")  # as commands say
        return all(np.array_equal(results[name], arrays[name]) for name in arrays)

    return ExampleFile(kind, lambda stream: _write_npz(stream, arrays), read_npz)


def _write_npz(stream: BinaryIO, arrays: dict[str, Any]) -> None:
    """As `numpy.savez` does, with the same time in every run."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
