"""Times of kernels on GPUs: against measurements that nothing was fitted to, and in what physics forbids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from einc.calibration.form_fit import predict_us
from einc.machines.catalogue import load_catalogue, scale_rates
from einc.machines.gpu import GpuRates
from einc.machines.load import load_gpu, load_machine
from einc.machines.model import Site
from einc.predict.costs import TaskCost, TaskKind, compute_occupied_ms
from einc.predict.kernel_times import time_decode_us, time_kernel_us, time_prefill_us, time_product_us
from einc_runtime.plan.work import AttentionWork, ExpertsWork, ProductWork, RecurrenceWork
from tests.rates.fit import fit_unit
from tests.rates.kinds import KINDS, MeasuredShapes
from tests.rates.measurements import Measured

_SHAPES = json.loads((Path(__file__).parent / "data" / "measured_kernels.json").read_text("utf-8"))
MEASURED, PRODUCTS_OF_8_BITS = _SHAPES["measured"], _SHAPES["products of 8 bits"]
LIMITS = {"product": (0.03, 0.12, 0.25), "prefill": (0.05, 0.20, 0.45), "decode": (0.10, 0.25, 0.60)}
"""How far the median may be from 1, and the relative errors within which 80% and 95% of the shapes lie, with a little
more for the median of so few shapes."""
NOISE = 0.02


def predict_product(gpu: GpuRates, rows: int, columns: int, inner: int) -> float:
    size = 2 * (rows * inner + columns * inner + rows * columns)
    return time_product_us(gpu.products[0], ProductWork(1, rows, columns, inner), size, 2.0)


def predict_prefill(gpu: GpuRates, sequences: int, queries: int, heads: int, key_heads: int, width: int) -> float:
    """Causal attention of whole prompts, which also stores their keys and values."""
    tokens, pairs = sequences * queries, sequences * queries * (queries + 1) // 2
    work = AttentionWork(heads, heads // key_heads, sequences, tokens, tokens, pairs, width, width)
    size, stored = 4 * tokens * (heads + key_heads) * width, 4 * tokens * key_heads * width
    return time_prefill_us(gpu.prefill[0], work, size, 1.0, stored)


def predict_decode(gpu: GpuRates, sequences: int, keys: int, heads: int, key_heads: int, width: int) -> float:
    pairs = sequences * keys
    work = AttentionWork(heads, heads // key_heads, sequences, sequences, pairs, pairs, width, width)
    return time_decode_us(gpu.decode[0], work, 4 * sequences * width * (key_heads * keys + heads), 2.0)


PREDICT: dict[str, Callable[..., float]] = {
    "product": predict_product, "prefill": predict_prefill, "decode": predict_decode
}  # fmt: skip


@pytest.mark.parametrize("kind", PREDICT)
@pytest.mark.parametrize("name", MEASURED)
def test_what_was_not_fitted_is_predicted(name: str, kind: str) -> None:
    gpu, shapes = load_gpu(name), MEASURED[name][kind]
    ratios = np.array([us / PREDICT[kind](gpu, *sizes) for *sizes, us in shapes])
    median, most, nearly_all = LIMITS[kind]
    assert abs(np.median(ratios) - 1) < median + NOISE
    assert np.quantile(np.abs(ratios - 1), 0.8) < most + NOISE
    assert np.quantile(np.abs(ratios - 1), 0.95) < nearly_all + NOISE


@pytest.mark.parametrize("name", PRODUCTS_OF_8_BITS)
def test_products_of_8_bits_are_predicted_by_rates_of_their_own(name: str) -> None:
    gpu = load_gpu(name)
    ratios, scaled = [], []
    for rows, columns, inner, us in PRODUCTS_OF_8_BITS[name]:
        size = (rows + columns) * inner + 2 * rows * columns
        work = ProductWork(1, rows, columns, inner)
        ratios.append(us / time_kernel_us(gpu, work, size, "f8e5m2", 1.0, 2.0))
        scaled.append(us / time_product_us(gpu.products[0], work, size, 1.0, 2.0))
    assert abs(np.median(ratios) - 1) < 0.03 + NOISE
    assert np.quantile(np.abs(np.array(ratios) - 1), 0.8) < 0.13 + NOISE
    assert np.abs(np.log(ratios)).mean() < 0.6 * np.abs(np.log(scaled)).mean(), "better than those of 16 bits, scaled"


@pytest.mark.parametrize("name", MEASURED)
def test_products_are_ranked_as_they_were_measured(name: str) -> None:
    gpu, shapes = load_gpu(name), MEASURED[name]["product"]
    predicted = [predict_product(gpu, *sizes) for *sizes, _ in shapes]
    ranks = [np.argsort(np.argsort(times)) for times in (predicted, [row[-1] for row in shapes])]
    assert np.corrcoef(*ranks)[0, 1] > 0.993


LEFT_OUT = {"product": ("products", 0.12, 0.30), "prefill": ("prefill", 0.25, 0.60), "decode": ("decode", 0.35, 0.60)}
"""The kind of rates, how far the median may be from 1 for a GPU that was left out, and within what 80% of the shapes
are (docs/truth/kernels.md)."""
TWINS = ({"h100-sxm", "h200-sxm"}, {"b200-sxm", "gb200"})


def as_measured(rows: list[list[float]], kind: str) -> Measured:
    *columns, us = np.array(rows).T
    names = {
        "product": ("rows", "columns", "inner"),
        "prefill": ("sequences", "queries"),
        "decode": ("sequences", "keys"),
    }
    sizes = (*names[kind], "heads", "key_heads", "head_size")[: len(columns)]
    return Measured(dict(zip(sizes, columns, strict=True)), us, {}, sizes)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", LEFT_OUT)
@pytest.mark.parametrize("name", MEASURED)
def test_a_gpu_that_was_left_out_is_predicted_from_its_data_sheet(name: str, kind: str) -> None:
    """By what is fitted to the shapes here of all GPUs with another chip."""
    rates, median, most = LEFT_OUT[kind]
    twins: set[str] = next((chip for chip in TWINS if name in chip), {name})
    known = {load_catalogue()[gpu]: as_measured(MEASURED[gpu][kind], kind) for gpu in MEASURED.keys() - twins}
    scaled = scale_rates(fit_unit(rates, known), load_catalogue()[name])
    gpu = msgspec.structs.replace(load_gpu(name), **{rates: (scaled,)})
    ratios = np.array([us / PREDICT[kind](gpu, *sizes) for *sizes, us in MEASURED[name][kind]])
    assert abs(np.median(ratios) - 1) < median
    assert np.quantile(np.abs(ratios - 1), 0.8) < most


@pytest.mark.parametrize("kind", LEFT_OUT)
@pytest.mark.parametrize("name", ["a100-sxm", "b200-sxm"])
def test_the_forms_that_are_fitted_are_those_that_predict(name: str, kind: str) -> None:
    gpu, rows = load_gpu(name), MEASURED[name][kind]
    rates = getattr(gpu, LEFT_OUT[kind][0])[0]
    predicted = [PREDICT[kind](gpu, *sizes) for *sizes, _ in rows]
    fitted = predict_us(rates, MeasuredShapes(KINDS[LEFT_OUT[kind][0]], as_measured(rows, kind)))
    np.testing.assert_allclose(fitted, predicted, rtol=1e-9)


def count_drops(times: Sequence[float]) -> float:
    """By how much the next time is less, at most."""
    return max((1 - later / earlier for earlier, later in itertools.pairwise(times)), default=0.0)


@pytest.mark.parametrize("name", list(load_catalogue()))
def test_more_work_takes_longer(name: str) -> None:
    """But for a tenth: libraries have better kernels for some sizes than for smaller ones."""
    gpu = load_gpu(name)
    for rows, columns, inner in ((1, 4096, 4096), (300, 1000, 700), (4096, 128, 16384)):
        for scale in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
            sizes = [
                [
                    extent * (2**step if along else 1)
                    for extent, along in zip((rows, columns, inner), scale, strict=True)
                ]
                for step in range(8)
            ]
            assert count_drops([predict_product(gpu, *each) for each in sizes]) < 0.1
    assert count_drops([predict_prefill(gpu, 2, 100 * 2**step, 32, 8, 128) for step in range(9)]) < 0.1
    assert count_drops([predict_decode(gpu, 8, 100 * 2**step, 32, 8, 128) for step in range(9)]) < 0.1
    experts = [time_kernel_us(gpu, ExpertsWork(8, 16 * 2**n, 512, 2048), 10**8, "bf16", 2.0, 1.0) for n in range(8)]
    assert count_drops(experts) < 0.1


@pytest.mark.parametrize("name", list(load_catalogue()))
def test_sizes_beyond_all_measurements_run_at_the_sustained_rate(name: str) -> None:
    gpu = load_gpu(name)
    huge, twice = (predict_product(gpu, rows, 1 << 17, 1 << 17) for rows in (1 << 17, 1 << 18))
    assert twice == pytest.approx(2 * huge, rel=0.01)
    tiny = predict_product(gpu, 1, 1, 1)
    assert 0.5 * gpu.products[0].launch_us < tiny < 2 * gpu.products[0].launch_us + 2


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100", "gb200-nvl72"])
def test_no_kernel_is_faster_than_the_peaks(machine: str) -> None:
    """So what is proved of the peaks is true of these times, too."""
    site = load_machine(machine).sites[0]
    works = [
        (ProductWork(batch, rows, columns, inner), 2 * batch * rows * columns * inner)
        for batch, rows, columns, inner in itertools.product((1, 3), (1, 200, 8192), (17, 4096), (64, 11008))
    ]
    works += [(AttentionWork(8, 4, 2, 512, 512, 131072, 128, 128), 8 * 131072 * 517), (None, 1000)]
    for (work, flops), dtype, size in itertools.product(works, ("bf16", "f16", "f32", "f64", "i8"), (10**4, 10**8)):
        took = compute_occupied_ms(TaskCost(TaskKind.KERNEL, 0, (), size, flops, dtype, work=work), site, 2.0)
        assert took >= flops / site.peak(dtype) * 1e3
        assert took >= size / (site.hbm_gbs * 1e6)


def test_types_that_were_not_measured_scale_with_their_peaks() -> None:
    gpu = load_gpu("h100-sxm")
    work, size = ProductWork(1, 8192, 8192, 8192), 3 * 4 * 8192**2
    half = time_kernel_us(gpu, work, size // 2, "f16", 2.0, 1.0)
    assert half == time_kernel_us(gpu, work, size // 2, "bf16", 2.0, 1.0)
    single = time_kernel_us(gpu, work, size, "f32", 4.0, 67 / 989)
    assert 10 < single / half < 16


def test_attention_that_nothing_was_fitted_to_reaches_the_peaks() -> None:
    """Also on a GPU whose file lists no bf16, whose f32 is then far slower than its f16."""
    flops = (("f16", 125e12), ("f32", 15.7e12))
    gpu = msgspec.structs.replace(load_gpu("v100"), prefill=(), decode=())
    site = Site(900.0, 1 << 34, flops, (), "v100", gpu)
    work = AttentionWork(8, 4, 2, 8192, 8192, 1 << 25, 128, 128)
    attention = TaskCost(TaskKind.KERNEL, 0, (), 10**7, 10**12, "f16", work=work)
    assert compute_occupied_ms(attention, site, 2.0) == pytest.approx(0.002 + 8.0)
    half, single = (
        TaskCost(TaskKind.KERNEL, 0, (), 10**8, 2 * 4096**3, dtype, work=ProductWork(1, 4096, 4096, 4096))
        for dtype in ("f16", "f32")
    )
    assert compute_occupied_ms(half, site, 2.0) == pytest.approx(2 * 4096**3 / 125e9 / 0.876, rel=0.2)
    assert compute_occupied_ms(single, site, 2.0) >= 2 * 4096**3 / 15.7e9


@pytest.mark.parametrize(
    "work",
    [ProductWork(2, 30, 40, 50), AttentionWork(8, 4, 2, 2, 90, 90, 64, 64), AttentionWork(8, 4, 2, 90, 90, 900, 64, 64),
     ExpertsWork(8, 30, 40, 50)],
    ids=["product", "decode", "prefill", "experts"],
)  # fmt: skip
@pytest.mark.parametrize("count", [0, 1, (1 << 63) - 1])
def test_any_size_that_a_plan_may_state_has_a_time(work: ProductWork | AttentionWork | ExpertsWork, count: int) -> None:
    """Plans of unknown origin are explained before it is proved that their sizes are those of their blocks."""
    gpu = load_gpu("h100-sxm")
    for field in work.__struct_fields__:
        stated = msgspec.structs.replace(work, **{field: count})
        time = time_kernel_us(gpu, stated, 1000, "bf16", 2.0, 1.0)
        assert 0 < time < np.inf, field


def test_steps_of_a_recurrence_wait_for_each_other() -> None:
    """On a GPU, a thousand steps take a thousand times what a load and a chain do; and at least their operations on as
    many multiprocessors as there are lanes, and at least their bytes. With launches of their own, they take these."""
    machine = load_machine("dgx-h100")
    site = machine.sites[0]

    def predict(work: RecurrenceWork, flops: int = 1000, size: int = 1000, kernel_us: float = 0.0) -> float:
        cost = TaskCost(TaskKind.KERNEL, 0, (), size, flops, task="recurrence", work=work)
        return compute_occupied_ms(cost, site, kernel_us)

    lone = RecurrenceWork(1000, 1, 2, 0, 0)
    assert predict(lone) == pytest.approx(1000 * (280 + 2 * 2.3) * 1e-6)
    assert predict(RecurrenceWork(3000, 1, 4, 2, 0)) == pytest.approx(3000 * (280 + 4 * 2.3 + 2 * 15) * 1e-6)
    flops = 10**12
    assert predict(lone, flops) == pytest.approx(132 * flops / site.peak("f32") * 1e3)
    assert predict(RecurrenceWork(1000, 4096, 2, 0, 0), flops) == pytest.approx(flops / site.peak("f32") * 1e3)
    assert predict(lone, size=10**12) == pytest.approx(10**12 / site.sustained_gbs * 1e-6)
    assert predict(RecurrenceWork(1000, 1, 2, 0, 3), kernel_us=2.0) == pytest.approx(0.002 + 6.0)
    assert predict(RecurrenceWork(0, 0, 0, 0, 0)) > 0
    cores = load_machine("host", 1).sites[0]
    cost = TaskCost(TaskKind.KERNEL, 0, (), 1000, 1000, task="recurrence", work=lone)
    assert compute_occupied_ms(cost, cores, 0.0) == pytest.approx(1000 * (1.7 + 2 * 1.3) * 1e-6)
