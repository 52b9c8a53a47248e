"""Resharding against brute force: every site ends with its blocks, of random layouts and of pairs of compiled plans."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from einc.compiler import compile_model
from einc.errors import CapacityError, MachineError
from einc.logical.pins import parse_pin
from einc.machines.load import load_machine
from einc.options import CompileOptions
from einc.resharding.building import build_resharding
from einc.resharding.layouts import Relocation, Resharding, compare_layouts
from einc.resharding.totals import describe_resharding
from einc.verification.figures import verify_figures
from einc_runtime.dtypes import storage_dtype
from einc_runtime.errors import PlanFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.data.parts import name_block
from einc_runtime.execution.data.safetensors import SafetensorsFile
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import ITEMSIZE, Block, Bundle, Tensor
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_plans import on_fake

MODELS = Path(__file__).parents[2] / "models"


def make_values(tensor: Tensor, seed: int) -> np.ndarray:
    """Bytes at random, so that no two elements are likely to be alike, and no rounding stays unnoticed."""
    dtype = storage_dtype(tensor.dtype)
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if tensor.dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, tensor.shape).astype(bool)
    return (
        np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype).reshape(tensor.shape)
    )


def cut(values: np.ndarray, block: Block) -> bytes:
    return values[tuple(map(slice, block.lower, block.upper))].tobytes()


def require_resharded(resharding: Resharding, plan: Bundle) -> None:
    """The plan is proved, runs, and every site ends with its blocks, bit for bit, and takes no less than the bounds."""
    plan = decode(encode(plan))
    prove(plan)
    verify_figures(plan)
    loads = {t.name: make_values(t, seed) for seed, t in enumerate(plan.tensors)}
    with Session(plan, backend="cpu") as session:
        session.load_weights(loads)
        session.execute()
        results = [(name, block, values.tobytes()) for name, block, values in session.offload_own()]
    places = [
        (plan.tensors[o.tensor].name, plan.buffers[r.buffer].site, r.block) for o in plan.outputs for r in o.regions
    ]
    needed = [(r.tensor.name, s, b) for r in resharding.relocations for s, blocks in enumerate(r.after) for b in blocks]
    assert sorted(places) == sorted(needed)
    assert [(name, block) for name, block, _ in results] == [(name, block) for name, _, block in places]
    for name, block, data in results:
        assert data == cut(loads[name], block), (name, block)
    loaded = {(plan.tensors[b.tensor].name, b.site, b.block) for b in plan.buffers if b.role == "weight"}
    held = [(r.tensor.name, s, b) for r in resharding.relocations for s, blocks in enumerate(r.before) for b in blocks]
    assert loaded == set(held)
    document = describe_resharding(resharding, plan)
    rows = zip(document["tensors"], resharding.relocations, strict=True)
    for row, relocation in rows:
        assert row["moved_bytes"] >= count_missing(relocation)
        assert bool(row["moved_bytes"]) == bool(count_missing(relocation))
        if row["bound_ms"] is not None:
            assert 0 < row["bound_ms"] <= row["predicted_ms"] * (1 + 1e-9)
    if resharding.machine.cores is None:
        assert document["bound_ms"] <= document["predicted_ms"] * (1 + 1e-9)


def count_missing(relocation: Relocation) -> int:
    """Bytes that sites need and do not have, element by element."""
    missing = 0
    for before, after in zip(relocation.before, relocation.after, strict=True):
        lacks = np.zeros(relocation.tensor.shape, bool)
        for blocks, value in ((after, True), (before, False)):
            for block in blocks:
                lacks[tuple(map(slice, block.lower, block.upper))] = value
        missing += int(lacks.sum()) * ITEMSIZE[relocation.tensor.dtype]
    return missing


def draw_layout(rng: random.Random, shape: tuple[int, ...], sites: int) -> tuple[tuple[Block, ...], ...]:
    """An uneven grid, each cell at one site or at several; some sites may have nothing, or all of it beside."""
    cuts = [sorted({0, size, *(rng.randrange(size) for _ in range(rng.randrange(3)))}) for size in shape]
    spans = [list(itertools.pairwise(cut)) for cut in cuts]
    held_blocks: list[set[Block]] = [set() for _ in range(sites)]
    used = rng.sample(range(sites), rng.randint(1, sites))
    for cell in itertools.product(*spans):
        block = Block(tuple(lo for lo, _ in cell), tuple(up for _, up in cell))
        for site in rng.sample(used, rng.randint(1, min(2, len(used)))):
            held_blocks[site].add(block)
    if rng.random() < 0.3:  # and a window that overlaps with cells
        lower = tuple(rng.randrange(size) for size in shape)
        upper = tuple(rng.randint(lo + 1, size) for lo, size in zip(lower, shape, strict=True))
        held_blocks[rng.randrange(sites)].add(Block(lower, upper))
    return tuple(
        tuple(sorted(b for b in blocks if not any(o != b and o.contains(b) for o in blocks))) for blocks in held_blocks
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_layouts(seed: int) -> None:
    rng = random.Random(seed)
    machine = load_machine(rng.choice(["dgx-v100", "dgx-a100"])) if seed % 3 else load_machine("host", 5)
    sites = rng.randint(2, 5)
    relocations = []
    for n in range(rng.randint(1, 3)):
        shape = tuple(rng.choice([1, 3, 7, 13]) for _ in range(rng.randint(1, 3)))
        tensor = Tensor(f"w{n}", tuple("abc"[: len(shape)]), shape, rng.choice(["f32", "bf16", "i8", "bool"]), "weight")
        relocations.append(Relocation(tensor, draw_layout(rng, shape, sites), draw_layout(rng, shape, sites)))
    devices = tuple(range(sites))
    resharding = Resharding("random", machine.restrict(devices), devices, tuple(relocations), ())
    for schedule in ("synthesized", "naive"):
        require_resharded(resharding, build_resharding(resharding, schedule=schedule))


def plan_of(name: str, machine: str, devices: int | tuple[int, ...], dims: dict[str, object], *pins: str) -> Bundle:
    options = CompileOptions(
        machine=machine,
        devices=devices,
        definitions=tuple((key, str(value)) for key, value in dims.items()),
        pins=tuple(map(parse_pin, pins)),
        selector="eindecomp",  # which cuts small models, too
        schedule="naive",
    )
    return compile_model((MODELS / f"{name}.ein").read_text(), f"{name}.ein", options).bundle


FFN = {"tokens": 24, "d_model": 21, "d_ff": 29}
LLAMA = {"n_layers": 2, "d_model": 48, "heads_q": 8, "heads_kv": 4, "d_head": 8, "d_ff": 40, "vocab": 70}


@pytest.mark.parametrize(("before", "after"), [(4, 6), (6, 4), (1, 5), ((1, 3, 6), (6, 0, 1, 3, 2))])
def test_plans_for_other_sites(before: int | tuple[int, ...], after: int | tuple[int, ...]) -> None:
    resharding = compare_layouts(plan_of("ffn", "dgx-v100", before, FFN), plan_of("ffn", "dgx-v100", after, FFN))
    assert not resharding.notes
    require_resharded(resharding, build_resharding(resharding))


def test_gpus_end_with_the_blocks_of_the_other_plan() -> None:
    """On a stand-in for the driver of GPUs, which runs what is captured in an order of its own."""
    plan = build_resharding(compare_layouts(plan_of("ffn", "dgx-v100", 4, FFN), plan_of("ffn", "dgx-v100", 6, FFN)))
    loads = {tensor.name: make_values(tensor, seed) for seed, tensor in enumerate(plan.tensors)}
    session, _, _ = on_fake(plan, [site % 2 for site in range(6)], FakeDriver(2, seed=1))
    session.load_weights(loads)
    session.execute()
    for name, block, values in session.offload_own():
        assert values.tobytes() == cut(loads[name], block)


class OneSite(CpuExecutor):
    """Holds what one site has, as the executor of a rank does."""

    def holds(self, buffer: int) -> bool:
        return self.bundle.buffers[buffer].site == 1

    def fill(self, buffer: int, values: np.ndarray) -> None:
        if self.holds(buffer):
            super().fill(buffer, values)


def test_a_process_reads_the_parts_of_its_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("ffn", "dgx-a100", 4, FFN)
    resharding = compare_layouts(plan, plan)
    stay = build_resharding(resharding)
    values = {tensor.name: make_values(tensor, seed) for seed, tensor in enumerate(stay.tensors)}
    parts = {
        name_block(relocation.tensor.name, block, relocation.tensor.shape): values[relocation.tensor.name][
            tuple(map(slice, block.lower, block.upper))
        ]
        for relocation in resharding.relocations
        for blocks in relocation.after
        for block in blocks
    }
    assert len(parts) == 4
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(part) for name, part in parts.items()}, tmp_path / "p.safetensors"
    )
    seen: list[str] = []
    array = SafetensorsFile.array
    monkeypatch.setattr(SafetensorsFile, "array", lambda file, name: seen.append(name) or array(file, name))
    Session(stay, executor=OneSite(stay, 1)).load_weights(tmp_path)
    assert sorted(seen) == sorted(
        name_block(relocation.tensor.name, block, relocation.tensor.shape)
        for relocation in resharding.relocations
        for block in relocation.after[1]
    )
    assert len(seen) < len(parts)


def test_caches_move_with_the_weights() -> None:
    dims = {"batch": 3, "cache": 6, **LLAMA}
    resharding = compare_layouts(
        plan_of("llama_decode", "dgx-a100", 4, dims), plan_of("llama_decode", "dgx-a100", 3, dims)
    )
    names = {relocation.tensor.name for relocation in resharding.relocations}
    assert {"keys.0", "values.1", "layer.0.w_q", "head"} <= names
    require_resharded(resharding, build_resharding(resharding))


def test_a_plan_of_the_same_layout_moves_nothing() -> None:
    plan = plan_of("ffn", "dgx-a100", 4, FFN)
    resharding = compare_layouts(plan, plan)
    document = describe_resharding(resharding, build_resharding(resharding))
    assert (document["moved_bytes"], document["predicted_ms"], document["bound_ms"], document["ratio"]) == (
        0,
        0,
        0,
        None,
    )


def test_other_cuts_and_the_machine_of_both() -> None:
    rows = plan_of("ffn", "dgx-a100", (0, 1), FFN, "act=d_ff/2")
    columns = plan_of("ffn", "dgx-a100", (2, 3), FFN, "act=d_model/2")
    with pytest.raises(MachineError, match="neither plan has all sites of the other"):
        compare_layouts(rows, columns)
    with pytest.raises(MachineError, match="the plans use site 99, and machine dgx-a100 has 8"):
        compare_layouts(rows, msgspec.structs.replace(columns, devices=(3, 99)), "dgx-a100")
    resharding = compare_layouts(rows, columns, "dgx-a100")
    assert resharding.devices == (0, 1, 2, 3)
    require_resharded(resharding, build_resharding(resharding))


def changed(plan: Bundle, tensor: str, **fields: object) -> Bundle:
    """The plan with a tensor changed."""
    tensors = tuple(msgspec.structs.replace(t, **fields) if t.name == tensor else t for t in plan.tensors)
    return msgspec.structs.replace(plan, tensors=tensors)


def test_what_does_not_fit_together_is_refused() -> None:
    plan = plan_of("ffn", "dgx-a100", 2, FFN)
    for name, fields, message in (
        ("w1", {"dtype": "f32"}, r"'w1' is a weight f16\[21, 29\] in the first plan and a weight f32\[21, 29\]"),
        ("w2", {"shape": (29, 22)}, r"'w2' is a weight f16\[29, 21\] in the first plan"),
        ("w1", {"kind": "state"}, "and a state f16"),
        ("w1", {"name": "other"}, "the first plan lacks 1 weight that the second one needs: 'other'"),
    ):
        with pytest.raises(PlanFault, match=message):
            compare_layouts(plan, changed(plan, name, **fields))
    chain = plan_of("chain_a", "dgx-a100", 2, {"scale": 512})
    with pytest.raises(PlanFault, match="the plans have no weight or state in common: one is of ffn, the other of"):
        compare_layouts(plan, chain)
    part = next(n for n, b in enumerate(plan.buffers) if b.role == "weight")
    half = msgspec.structs.replace(plan.buffers[part], block=Block((0, 0), (5, 9)))
    lacking = msgspec.structs.replace(plan, buffers=tuple(half if b.tensor == half.tensor else b for b in plan.buffers))
    with pytest.raises(PlanFault, match=r"no site of the first plan has \[.*\] of 'w1'"):
        compare_layouts(lacking, plan)


def test_what_only_one_plan_has_is_named() -> None:
    plan = plan_of("llama_decode", "dgx-a100", 2, {"batch": 3, "cache": 6, **LLAMA})
    renamed = changed(plan, "keys.0", name="lost")
    assert compare_layouts(plan, renamed).notes == (
        "only the first plan has 'keys.0', which the result leaves out",
        "only the second plan has 'lost', which begins with zeros",
    )


def test_the_blocks_of_both_plans_must_fit() -> None:
    first, second = plan_of("ffn", "dgx-a100", 1, FFN), plan_of("ffn", "dgx-a100", 3, FFN)
    resharding = compare_layouts(first, second)
    small = replace(resharding, machine=resharding.machine.limit_memory(1000))
    with pytest.raises(CapacityError, match="site 0 of dgx-a100"):
        build_resharding(small)
