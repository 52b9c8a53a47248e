"""Files of a training run with random mistakes: each run ends with one clear error, or takes what is still a file."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import einc as es
from einc.cli.main import main
from einc_runtime.plan.codec import encode
from tests.support.training_texts import LETTERS

"""Mistakes of each kind of file in the suite, and those that `-m slow` tries."""
DECLARED = 600
"""Bytes at the beginning of a file that say what is in it: most mistakes are there."""
NUMBERS = ("-1", "0", "7", "1e9", "18446744073709551616", "9" * 400, "null", '"x"', "[]", "NaN")
REFUSED = (2, 65)
"""Exit codes of wrong arguments, as of a file that is no file of weights, and of wrong data."""

FILES = {
    "checkpoint": "run/step-00000002.safetensors",
    "set": "weights/model-2.safetensors",
    "index": "weights/model.safetensors.index.json",
    "data": "tokens.npy",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, data, a checkpoint of two steps, and its weights as a set of two files."""
    folder = tmp_path_factory.mktemp("made")
    plan = es.compile(LETTERS, "host", 1, train="loss", optimizer="adamw", selector="eindecomp", schedule="naive")
    (folder / "step.bin").write_bytes(encode(plan.bundle))
    np.save(folder / "tokens.npy", (np.cumsum(np.random.default_rng(0).integers(1, 3, 200)) % 11).astype("i4"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train("--weights", "init:3", "--steps", "2") == 0
    arrays = load_file(folder / FILES["checkpoint"])
    weights = [name for name in arrays if "." not in name or name == "wte.weight"]
    (folder / "weights").mkdir()
    where = {name: f"model-{1 + n % 2}.safetensors" for n, name in enumerate(weights)}
    for file in set(where.values()):
        save_file({name: arrays[name] for name in weights if where[name] == file}, folder / "weights" / file)
    (folder / FILES["index"]).write_text(json.dumps({"metadata": {"total_size": 9}, "weight_map": where}, indent=1))
    return folder


def train(*more: str) -> int:
    return main(["train", "step.bin", "--data", "tokens.npy", "--rate", "0.02", "--checkpoints", "run", *more])


def cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def flip(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(min(DECLARED, len(data)))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def insert(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(min(DECLARED, len(data)))
    return data[:at] + draw.randbytes(draw.choice((1, 8, 4096))) + data[at:]


def repeat(draw: random.Random, data: bytes) -> bytes:
    first, last = sorted(draw.randrange(min(DECLARED, len(data))) for _ in range(2))
    return data[:last] + data[first:]


def renumber(draw: random.Random, data: bytes) -> bytes:
    """Another number, or none, in place of one; the length of the header stays as it was, so that it is wrong, too."""
    numbers = [*re.finditer(rb"\d+", data[8:DECLARED])]
    if not numbers:
        return flip(draw, data)
    number = draw.choice(numbers)
    return data[: 8 + number.start()] + draw.choice(NUMBERS).encode() + data[8 + number.end() :]


def redeclare(draw: random.Random, data: bytes) -> bytes:
    """As `renumber`, with a header of safetensors that is as long as it says."""
    changed = renumber(draw, data)
    length = int.from_bytes(data[:8], "little") + len(changed) - len(data)
    return length.to_bytes(8, "little", signed=False) + changed[8:]


MISTAKES: tuple[Callable[[random.Random, bytes], bytes], ...] = (cut, flip, insert, repeat, renumber, redeclare)


def check(kind: str, seed: int, made: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One mistake in a file of this kind: the run goes on, or ends with one error and leaves no new checkpoint."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    path, draw = folder / FILES[kind], random.Random(f"{kind} {seed}")
    mistakes = MISTAKES if path.suffix == ".safetensors" else MISTAKES[:-1]
    path.write_bytes(draw.choice(mistakes)(draw, path.read_bytes()))
    if kind != "checkpoint":
        shutil.rmtree(folder / "run")
    weights = "weights" if kind in ("set", "index") else "init:3"
    more = ["--resume"] if kind == "checkpoint" else ["--weights", weights]
    capfd.readouterr()
    code, error = train(*more, "--steps", "3"), capfd.readouterr().err
    left = {file.name for file in (folder / "run").iterdir()} if (folder / "run").exists() else set()
    assert "Traceback" not in error
    if code:
        assert code in REFUSED, error
        assert len(re.findall("^einc: ", error, re.MULTILINE)) == 1, error
        assert "step-00000003.safetensors" not in left
    else:
        assert "step-00000003.safetensors" in left


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_mutated_files_are_taken_or_refused(
    kind: str, seeds: range, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for seed in seeds:
        check(kind, seed, made, tmp_path, capfd)
