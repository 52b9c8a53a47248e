"""Shards of one plan become those of another, over a real MPI: the bits of the whole weights, in 1, 2 and 4 ranks."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest
from safetensors import safe_open

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.plan.codec import encode
from tests.support.mpi_runs import ROOT, SMALL, command, run


def compile_plan(folder, name, sites):
    options = CompileOptions(
        machine="dgx-v100",
        devices=sites,
        selector="eindecomp",
        schedule="naive",
        dtype="bf16",
        definitions=tuple((key, str(value)) for key, value in SMALL[name].items()),
    )
    bundle = compile_model((ROOT / "models" / f"{name}.ein").read_text(), name, options).bundle
    path = folder / f"{name}-{sites}.bin"
    path.write_bytes(encode(bundle))
    return path, bundle


def read_files(folder):
    """Every block in every file: the file, the name of its tensor, its place, and its bytes."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118
                ends = re.search(r"\[([0-9:, ]+)\]$", name)
                slices = [slice(*map(int, bounds.split(":"))) for bounds in ends[1].split(", ")] if ends else [...]
                yield file, name.removesuffix(ends[0] if ends else ""), tuple(slices), opened.get_slice(name)[:]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ffn", 4, 6),
        ("llama_decode", 5, 4),
        pytest.param("ffn", 5, 4, marks=pytest.mark.slow),
        pytest.param("llama_decode", 4, 6, marks=pytest.mark.slow),
    ],
)
def test_every_rank_reads_its_shards_and_writes_those_of_the_other_plan(name, before, after, tmp_path):
    (first, _), (second, bundle) = compile_plan(tmp_path, name, before), compile_plan(tmp_path, name, after)
    move, stay = tmp_path / "move.bin", tmp_path / "stay.bin"
    run(command("reshard", first, first, "-o", stay))
    run(command("reshard", first, second, "-o", move))
    tensors = [msgspec.structs.replace(t, kind="weight") for t in bundle.tensors if t.kind in ("weight", "state")]
    expected = {tensor.name: make_random_array(tensor, 7) for tensor in tensors}
    for count in (1, 2, 4):
        before_folder, after_folder = tmp_path / f"{count}-before", tmp_path / f"{count}-after"
        before_folder.mkdir()
        after_folder.mkdir()
        shards = ("--shards", "--ranks", count, "-o")
        run(command("run", stay, "--weights", "rand:7", *shards, before_folder / "model.safetensors"))
        done = run(
            command("run", move, "--weights", before_folder, "--json", *shards, after_folder / "model.safetensors")
        )
        assert json.loads(done.stdout).get("ranks", 1) == count
        seen = {key: np.zeros(array.shape, bool) for key, array in expected.items()}
        files = set()
        for file, key, region, values in read_files(after_folder):
            assert values.tobytes() == expected[key][region].tobytes(), (count, key, region)
            seen[key][region] = True
            files.add(file)
        assert all(filled.all() for filled in seen.values())
        assert len(files) > count // 2  # the last rank may have no site of the other plan
        index = json.loads((after_folder / "model.safetensors.index.json").read_text())
        for block, file in index["weight_map"].items():
            with safe_open(after_folder / file, "np") as opened:
                assert block in opened.keys()  # noqa: SIM118
    weights = after_folder
    if name == "ffn":  # and the other plan computes with them what it computes with the whole weights
        for source, target in ((weights, "a.npy"), ("rand:7", "b.npy")):
            run(
                command("run", second, "--inputs", "rand:0", "--weights", source, "--ranks", 2, "-o", tmp_path / target)
            )
        assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_a_rank_opens_what_it_needs(tmp_path):
    """Each rank has its own file, and a missing one is a clear error."""
    (first, _), (second, _) = compile_plan(tmp_path, "ffn", 4), compile_plan(tmp_path, "ffn", 3)
    run(command("reshard", first, first, "-o", tmp_path / "stay.bin"))
    run(command("reshard", first, second, "-o", tmp_path / "move.bin"))
    target = tmp_path / "model.safetensors"
    run(command("run", tmp_path / "stay.bin", "--weights", "rand:7", "--shards", "--ranks", 2, "-o", target))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused = run(command("run", tmp_path / "move.bin", "--weights", tmp_path, "--ranks", 2), 65).stderr.decode()
    assert "there is no file model-00002-of-00002.safetensors, which the index names" in refused
