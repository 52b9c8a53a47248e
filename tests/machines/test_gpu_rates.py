"""Measured rates of GPUs in machine files: read, written again, and refused where they contradict themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from einc.errors import MachineError
from einc.machines.catalogue import load_catalogue
from einc.machines.load import format_machine, list_gpus, load_gpu, load_machine, parse_machine

SITE = {"hbm_gbs": 900, "memory_bytes": 1 << 30, "flops": {"bf16": 1e14, "f32": 1e13}}
PRODUCTS: dict[str, Any] = {
    "dtype": "bf16", "multiprocessors": 10, "launch_us": 2.0, "error": 0.1, "memory_tbs": 0.8, "overlap_norm": 3.0,
    "tensor_tflops": 90.0, "load_gbs": 60.0, "depth_ns": 1.0, "output_weight": 2.0, "split_us": 1.0,
    "wave_rounding": 0.2,
    "correction": {
        "knots": [{"size": "rows", "at": [0, 4, 9]}, {"size": "inner", "at": [0, 8]}],
        "tables": [{"sizes": ["rows", "inner"], "values": [0.1, 0.0, -0.2, 0.3, 0.0, 0.0]}],
    },
}  # fmt: skip


def file_of(products: dict[str, Any] = PRODUCTS, **site: Any) -> str:
    gpus = {"mine": {"source": "made up", "products": [products]}}
    return json.dumps({"name": "m", "sites": [{**SITE, "gpu": "mine", **site}], "gpus": gpus})


def test_a_machine_says_the_same_when_it_is_read_again() -> None:
    for machine in (parse_machine(file_of()), load_machine("dgx-h100"), load_machine("gb200-nvl72x2")):
        again = parse_machine(format_machine(machine))
        assert again == machine
        assert format_machine(again) == format_machine(machine)
        assert machine.sites[0].gpu is not None


def test_a_gpu_of_the_file_goes_before_one_that_comes_with_einc() -> None:
    gpus = {"h100-sxm": {"source": "made up", "products": [PRODUCTS]}}
    known = {"name": "m", "sites": [{**SITE, "gpu": "h100-sxm"}]}
    assert parse_machine(json.dumps(known)).sites[0].gpu == load_gpu("h100-sxm")
    gpu = parse_machine(json.dumps({**known, "gpus": gpus})).sites[0].gpu
    assert gpu is not None
    assert gpu.source == "made up"


def test_what_comes_with_einc_is_read_and_has_all_kinds() -> None:
    assert {"a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "l40s"} <= set(list_gpus())
    for name in list_gpus():
        gpu = load_gpu(name)
        assert gpu.products
        assert gpu.prefill
        assert gpu.decode
        assert gpu.experts
        assert "Apache-2.0" in gpu.source


def without_values(products: dict[str, Any]) -> None:
    products["correction"]["tables"][0]["values"].pop()


def with_other_size(products: dict[str, Any]) -> None:
    products["correction"]["knots"][0]["size"] = "keys"


def descending(products: dict[str, Any]) -> None:
    products["correction"]["knots"][0]["at"] = [0, 4, 4]


def without_knots(products: dict[str, Any]) -> None:
    products["correction"]["tables"][0]["sizes"] = ["rows", "columns"]


def endless(products: dict[str, Any]) -> None:
    products["correction"]["tables"][0]["values"][2] = 700.0


def without_rate(products: dict[str, Any]) -> None:
    products["load_gbs"] = 0.0


def with_more(products: dict[str, Any]) -> None:
    products["speed"] = 1.0


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "values": (without_values, "gpus['mine'].products[0].correction.tables[0]: expected 6 values, found 5"),
    "size": (with_other_size, "expected each of rows, columns, inner once at most, found 'keys'"),
    "order": (descending, "those of 'rows' do not ascend"),
    "knots": (without_knots, "its sizes are not those of the knots"),
    "factor": (endless, "gpus"),
    "rate": (without_rate, "gpus"),
    "field": (with_more, "gpus"),
}


@pytest.mark.parametrize("lie", LIES)
def test_rates_that_contradict_themselves_are_refused(lie: str) -> None:
    change, told = LIES[lie]
    products = json.loads(json.dumps(PRODUCTS))
    change(products)
    with pytest.raises(MachineError) as caught:
        parse_machine(file_of(products))
    assert told in caught.value.render()


def test_a_gpu_that_is_listed_twice_or_unknown_is_refused() -> None:
    gpus = {"mine": {"source": "made up", "products": [PRODUCTS, PRODUCTS]}}
    with pytest.raises(MachineError, match="'bf16' is listed twice"):
        parse_machine(json.dumps({"name": "m", "sites": [{**SITE, "gpu": "mine"}], "gpus": gpus}))
    with pytest.raises(MachineError, match="one of mine, p100"):
        parse_machine(file_of(gpu="yours"))


def test_the_ideal_machine_reaches_its_peaks() -> None:
    assert all(site.gpu is None for site in load_machine("dgx-h100").ideal().sites)


def test_a_gpu_that_was_not_measured_has_rates_from_its_data_sheet() -> None:
    """Of a unit GPU that reaches 0.8756 of its peak, loads 20.52 GB/s for each TFLOP/s of a multiprocessor, and
    launches a product in 4.244 us at 1 GHz."""
    machine = parse_machine(json.dumps({"name": "m", "sites": [{**SITE, "gpu": "mi300x"}]}))
    gpu = machine.sites[0].gpu
    assert gpu is not None
    assert not gpu.measured
    (products,) = gpu.products
    assert products.tensor_tflops == pytest.approx(0.8756 * 1307.4, rel=1e-3)
    assert products.load_gbs == pytest.approx(20.52 * 1307.4 / 304, rel=1e-3)
    assert products.depth_ns == pytest.approx(6.347 / 1307.4 * 304, rel=1e-3)
    assert products.launch_us == pytest.approx(4.244 / 2.1, rel=1e-3)
    assert (products.multiprocessors, gpu.prefill[0].cache_mb) == (304, 256)
    assert gpu.decode[0].load_gbs == load_gpu("t4").decode[0].load_gbs
    assert {rates.dtype for rates in (*load_gpu("v100").products, *load_gpu("v100").experts)} == {"f16"}
    assert parse_machine(format_machine(machine)) == machine
    assert '"measured":false' in format_machine(machine)
    assert '"measured":true' not in format_machine(load_machine("dgx-h100"))


@pytest.mark.parametrize("name", list(load_catalogue()))
def test_what_was_measured_goes_before_data_sheets(name: str) -> None:
    assert load_gpu(name).measured == (name in list_gpus())


@pytest.mark.parametrize("name", list(load_catalogue()))
def test_clocks_are_those_at_which_multiprocessors_multiply_at_the_peak(name: str) -> None:
    """A multiprocessor multiplies and adds a power of two of numbers in a cycle."""
    sheet = load_catalogue()[name]
    operations = sheet.tensor_tflops * 1e3 / sheet.multiprocessors / sheet.clock_ghz
    assert math.log2(operations) == pytest.approx(round(math.log2(operations)), abs=0.01)
