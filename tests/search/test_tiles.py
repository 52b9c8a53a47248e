"""Products in tiles: they are chosen where they are faster, and plans with them are proved and compute the same."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.errors import UsageError
from einc.logical.pins import parse_pin
from einc.logical.plan import LogicalPlan, Tiles, dump_plan
from einc.logical.tiles import cut_into_tiles
from einc.machines.load import load_machine
from einc.options import CompileOptions
from einc.plan_reading.restore import restore_plan
from einc.report.document import explain
from einc.report.terminal import format_overview
from einc.verification.figures import verify_figures
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import Bundle, KernelTask, TransferTask
from tests.support.cuda_plans import agree, on_fake
from tests.support.plan_arrays import arrays_of, outputs_of, results
from tests.support.tiled_plans import make_bundle, tile

H100 = load_machine("dgx-h100")
MODEL = """model rows
dim n = 24
dim width = 15
dim inner = 10
input x : {dtype}[n, width]
weight w : {dtype}[width, inner]
weight v : {dtype}[inner, width]
h[n, inner] = x[n, width] * w[width, inner]
y[n, width] = h[n, inner] * v[inner, width]
z = x + y
output {outputs}
"""
WIDE = """model wide
dim n = 4096
dim width = 8192
dim inner = 28672
input x : f16[n, width]
weight w : f16[width, inner]
weight v : f16[inner, width]
h[n, inner] = x[n, width] * w[width, inner]
y[n, width] = h[n, inner] * v[inner, width]
z = x + y
output z
"""
PIN_TEXTS = ("h=inner/{sites}", "y=inner/{sites}", "z=n/{sites}")


def plan(sites: int, outputs: str = "z", dtype: str = "f64") -> LogicalPlan:
    """Partial sums on every site, which are added up for rows."""
    pins = tuple(parse_pin(pin.format(sites=sites)) for pin in PIN_TEXTS)
    options = CompileOptions(machine="dgx-h100", devices=sites, pins=pins, schedule="naive")
    return compile_model(MODEL.format(dtype=dtype, outputs=outputs), "model.ein", options).plan


def run(bundle: Bundle) -> dict[str, np.ndarray]:
    """The outputs of a run in a random order of tasks, over memory that is poisoned."""
    rng = random.Random(7)
    executor = CpuExecutor(bundle, 2, poison=True, ranks=[rng.random() for _ in bundle.tasks])
    return results(Session(bundle, executor=executor), arrays_of(bundle, 3))


@pytest.mark.parametrize(("sites", "index", "count"), [(2, 0, 2), (2, 1, 3), (5, 0, 4), (3, 1, 5)])
@pytest.mark.parametrize("outputs", ["z", "z, y"])
def test_tiles_are_proved_and_compute_what_whole_products_do(sites, index, count, outputs):
    uncut = plan(sites, outputs)
    names = [shardable.name for shardable in uncut.graph.nodes[1].operator.indices]
    kept = [n for n, choice in enumerate(uncut.choices[1].candidate.intervals) if len(choice) == 1]
    tiled = tile(uncut, "y", kept[index], count)
    bundle = make_bundle(tiled)
    prove(bundle)
    assert bundle.operations[1].parts == count
    assert restore_plan(bundle).choices[1].candidate.tiles == Tiles(kept[index], count)
    assert f"in {count} tiles along {names[kept[index]]} at each site" in dump_plan(tiled)
    expected, computed = run(make_bundle(uncut)), run(bundle)
    for name, array in expected.items():
        np.testing.assert_allclose(computed[name], array, rtol=1e-13)


def test_what_a_tile_made_is_sent_before_the_next_is_computed():
    bundle = make_bundle(tile(plan(2), "y", 0, 2))
    kernels = [n for n, task in enumerate(bundle.tasks) if isinstance(task, KernelTask) and task.operation == 1]
    assert len(kernels) == 4
    moves = [task for task in bundle.tasks if isinstance(task, TransferTask)]
    awaited = [[kernels.index(before) for before in move.after if before in kernels] for move in moves]
    assert any(max(numbers) < 2 for numbers in awaited)  # the first two kernels are those of the first tile


@pytest.mark.parametrize("devices", [None, [0] * 3])
def test_captured_graphs_run_tiles(devices):
    bundle = make_bundle(tile(plan(3, "z, y", "f32"), "y", 0, 4))
    arrays = arrays_of(bundle, 3)
    session, _, _ = on_fake(bundle, devices)
    session.load_all(arrays)
    for _ in range(2):
        session.execute()
        agree(outputs_of(session), run(bundle))


def test_the_search_takes_tiles_where_they_are_faster():
    chosen = CompileOptions(
        machine="dgx-h100", devices=8, pins=(parse_pin("h=inner/8"), parse_pin("z=n/8")), memory=2**29
    )
    uncut = compile_model(WIDE, "model.ein", chosen)
    compiled = compile_model(WIDE, "model.ein", replace(chosen, tiles=True))
    bundle, at_once = compiled.bundle, uncut.bundle
    assert bundle.predicted_ms < 0.99 * at_once.predicted_ms
    assert bundle.operations[1].parts > 1 == at_once.operations[1].parts
    prove(bundle)
    verify_figures(compiled.folded_bundle)
    document = explain(bundle)
    assert document["least_ms"] is None
    assert f"computed in {bundle.operations[1].parts} tiles" in format_overview(document)


def test_products_that_are_sent_nowhere_have_no_tiles():
    chosen = CompileOptions(machine="dgx-h100", devices=4, tiles=True)
    assert (
        compile_model(MODEL.format(dtype="f16", outputs="z"), "model.ein", chosen).bundle
        == compile_model(MODEL.format(dtype="f16", outputs="z"), "model.ein", replace(chosen, tiles=False)).bundle
    )


def test_why_no_tiles_were_tried_is_told():
    pins = parse_pin("h=inner/17"), parse_pin("z=n/17")
    chosen = CompileOptions(machine="dgx-h100x3", devices=17, pins=pins, tiles=True)
    compiled = compile_model(WIDE, "model.ein", chosen)
    document = explain(compiled.bundle)
    reason = "the plan has 17 sites, and tiles are tried on 16 at most"
    assert compiled.remarks == [f"no tiles: {reason}"]
    assert f"not tried: in tiles, {reason}" in " ".join(format_overview(document).split())


def test_tiles_that_are_not_possible():
    candidate = plan(2).choices[1].candidate
    operator = plan(2).graph.nodes[1].operator
    assert cut_into_tiles(operator, candidate, 0, 1000) is None
    assert cut_into_tiles(operator, replace(candidate, replicas=2), 0, 2) is None
    with pytest.raises(UsageError, match="not planned together with naive exchanges"):
        CompileOptions(tiles=True, schedule="naive")
