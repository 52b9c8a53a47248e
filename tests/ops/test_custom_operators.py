"""Operators of Python packages: the package of docs/custom-operators.md, installed into a folder, and faulty ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.frontend import build
from einc.logical.pins import Pin
from einc.options import CompileOptions
from einc_runtime import custom
from einc_runtime.errors import MissingFault, PlanFault, ReportedError
from einc_runtime.execution.session import Session
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.plan.meaning.custom import parse_custom_signature
from tests.support.custom_packages import install, install_spectra, make_site, read_block
from tests.support.triton_in_numpy import Arena, run

__all__ = ["install_spectra", "make_site"]
"""Fixtures of these tests."""

MODEL = read_block("ein")


def draw(dtype: str = "f4") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"x": rng.standard_normal((40, 96)).astype(dtype), "w": rng.standard_normal(96).astype(dtype)}


def meaning(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    p = np.abs(np.fft.fft(arrays["x"].astype("f8"), axis=-1)) ** 2 * 0.5
    return p, (p * p * arrays["w"].astype("f8")).sum(axis=1)


def compute(text: str, sites: int, arrays: dict[str, np.ndarray], pins: tuple[Pin, ...] = ()) -> dict[str, np.ndarray]:
    plan = compile_model(text, "m.ein", CompileOptions(machine="host", devices=sites, pins=pins)).bundle
    return Session(plan).run(arrays)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("spectra")
@pytest.mark.parametrize("sites", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("cut", ["rows", "n"])
def test_plans_compute_the_function_cut_along_every_label(sites: int, cut: str) -> None:
    arrays = draw()
    pins = (Pin("y", f"{cut}/{sites}"),) if sites > 1 else ()
    results = compute(MODEL, sites, arrays, pins)
    p, y = meaning(arrays)
    assert np.abs(results["p"] - p).max() <= 1e-4 * np.abs(p).max()
    assert np.abs(results["y"] - y).max() <= 1e-4 * np.abs(y).max()


@pytest.mark.usefixtures("spectra")
def test_16_bit_floats_are_computed_in_32_bits_and_rounded_once() -> None:
    text = MODEL.replace("f32", "f16").replace("scale = 0.5", "scale = 0.001")
    arrays = draw("f2")
    p = np.abs(np.fft.fft(arrays["x"].astype("f4"), axis=-1)) ** 2 * np.float32(0.001)
    assert np.array_equal(compute(text, 1, arrays)["p"], p.astype("f2"))


@pytest.mark.usefixtures("spectra")
def test_the_time_comes_from_its_operations() -> None:
    graph = build(MODEL, "m.ein")
    spectrum, energy = (node.operator for node in graph.nodes)
    functions = [
        node.build_spec(tuple(i.intervals(1) for i in node.indices)).functions[0] for node in (spectrum, energy)
    ]
    assert spectrum.flops(functions[0]) == round(40 * 96 * 5 * np.log2(96))
    assert energy.flops(functions[1]) == 40 * 96 * 3
    assert [index.name for index in spectrum.indices] == ["rows"]
    assert [index.name for index in energy.indices] == ["rows", "n"]


def test_a_plan_is_proved_and_explained_without_the_package(spectra: Path, tmp_path: Path) -> None:
    """In processes of their own, one with the package and others without it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m.ein").write_text(MODEL, "utf-8")

    def command(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-m", "einc", *arguments], cwd=elsewhere, env=environment, capture_output=True, text=True
        )

    inputs = ["--inputs", "x=rand:0", "--weights", "rand:1"]
    result = command("compile", "m.ein", "-m", "dgx-a100", "-o", "plan.bin", path=str(spectra))
    assert result.returncode == 0, result.stderr
    assert command("run", "plan.bin", *inputs, "--check", path=str(spectra)).returncode == 0
    explained = command("explain", "plan.bin", path="")
    assert explained.returncode == 0, explained.stderr
    assert "power_spectrum" in explained.stdout
    assert command("verify", "plan.bin", path="").returncode == 0
    failed = command("run", "plan.bin", *inputs, path="")
    assert failed.returncode == MissingFault.exit_code
    assert "the operator 'power_spectrum' is not installed" in failed.stderr


@pytest.mark.usefixtures("spectra")
def test_an_operator_that_changed_is_refused() -> None:
    plan = compile_model(MODEL, "m.ein", CompileOptions(machine="host")).bundle
    operator = custom.load_custom_operator("energy")
    object.__setattr__(operator, "signature", parse_custom_signature("x: float[a, b], w: float[b] -> y[a]"))
    with pytest.raises(PlanFault, match="is installed as x: float"):
        Session(plan)


@pytest.mark.usefixtures("spectra")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("power_spectrum(x, size = 3)", "has no setting 'size'"),
        ("power_spectrum(x, x)", "takes 1 tensor, not 2"),
        ("energy(x, x)", "its operand w: float[n] is f32[rows=40, n=96]"),
        ("energy(x, v)", "'n' is 96, and 40 in its operand w: float[n]: f32[rows=40]"),
        ("energy(ids, w)", "its operand x: float[rows, n] is i64[rows=40, n=96]"),
        ("power_spectrun(x)", "there is no operator or block 'power_spectrun'"),
    ],
)
def test_errors_are_shown_at_the_call(call: str, message: str) -> None:
    extra = "input v : f32[rows]\ninput ids : i64[rows, n]\n"
    text = MODEL.split("p =")[0] + extra + f"output y = {call}\n"
    with pytest.raises(ReportedError) as caught:
        build(text, "m.ein")
    assert message in caught.value.render()
    assert "m.ein:" in caught.value.render()


FAULTY = """
import numpy as np
from einc_runtime.custom import custom_operator

@custom_operator("x: float[n] -> y[n]")
def raises(x):
    raise ValueError("no")

@custom_operator("x: float[n] -> y[n]")
def shrinks(x):
    return x[1:]

@custom_operator("x: float[n] -> y[n]")
def two(x):
    return x, x

@custom_operator("x: float[n] -> y[n]")
def writes(x):
    x += 1
    return x

@custom_operator("x: float[n] -> y[k]", uncut=["n"])
def first(x, *, k: int):
    return x[:k]

plain = len
"""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("raises(x)", "the operator 'raises' failed: ValueError: no"),
        ("shrinks(x)", r"returned an array \(3,\), expected \(4,\)"),
        ("two(x)", "returned 2 arrays, where its signature has 1"),
        ("writes(x)", "failed: ValueError: output array is read-only"),
        ("first(x)", "needs the setting 'k'"),
        ("first(x, k = 0)", "'k' is an extent of its result"),
        ("plain(x)", "is a builtin_function_or_method"),
        ("missing(x)", "cannot be loaded from faulty:missing"),
    ],
)
def test_faults_of_a_package_end_in_one_error(site: Path, call: str, message: str) -> None:
    install(site, "faulty", FAULTY, ["raises", "shrinks", "two", "writes", "first", "plain", "missing"])
    text = f"model m\ndim n = 4\ninput x : f32[n]\noutput y = {call}\n"
    with pytest.raises(ReportedError, match=message):
        compute(text, 1, {"x": np.ones(4, "f4")})


def test_a_setting_is_an_extent_of_the_result(site: Path) -> None:
    install(site, "faulty", FAULTY, ["first"])
    text = "model m\ndim n = 4\ninput x : f32[n]\noutput y = first(x, k = 3) * 2\n"
    result = compute(text, 2, {"x": np.arange(4, dtype="f4")})["y"]
    assert result.tolist() == [0, 2, 4]


@pytest.mark.usefixtures("spectra")
def test_names_of_einc_come_before_those_of_packages(site: Path) -> None:
    install(site, "faulty", FAULTY, ["first"])
    (site / "faulty-1.0.dist-info" / "entry_points.txt").write_text(
        "[einc_operators]\ncumsum = faulty:raises\nsoftmax = faulty:raises\n", "utf-8"
    )
    text = 'model m\ndim n = 4\ninput x : f32[n]\ny = cumsum(x, "n")\noutput y\noutput z = softmax(x)\n'
    results = compute(text, 1, {"x": np.ones(4, "f4")})
    assert results["y"].tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("spectra")
def test_reproducible_plans_refuse_it() -> None:
    with pytest.raises(ReportedError, match="no stated order"):
        compile_model(MODEL, "m.ein", CompileOptions(machine="host", reproducible=True)).bundle  # noqa: B018


@pytest.mark.parametrize(
    "text",
    [
        "", "x[n]", "x[n] -> ", "x[n] -> y[n] -> z[n]", "x[n n] -> y[n]", "x[n, n] -> y[n]", "x: text[n] -> y[n]",
        "x[n] -> y: float[n]", "x[n] -> y[..., n]", "x[n], x[n] -> y[n]", "x[2] -> y[2]", "x[n]; w[n] -> y[n]",
        "x[" + "n" * 3000 + "] -> y[]", ", ".join(f"x{k}[n]" for k in range(17)) + " -> y[n]",
    ],
)  # fmt: skip
def test_what_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(PlanFault, match="signature of a custom operator"):
        parse_custom_signature(text)


def test_signatures_have_one_text() -> None:
    signature = parse_custom_signature(" x [ ..., n ] ,w:f32[n]->y[...],count : i64[ ]")
    assert str(signature) == "x: float[..., n], w: f32[n] -> y[...], count: i64[]"
    assert parse_custom_signature(str(signature)) == signature


@pytest.mark.usefixtures("spectra")
def test_the_triton_kernel_computes_what_the_function_does() -> None:
    """Its source, run in numpy on strided operands."""
    arena = Arena()
    arrays = draw()
    reads = [arena.place(arrays[name], 2) for name in ("x", "w")]
    write = arena.place(np.zeros(40, "f4"), 2, output=True)
    operator = build(MODEL, "m.ein").nodes[1].operator
    invocation = Invocation("custom", dict(operator.kernel.attributes), list(map(as_layout, reads)), [as_layout(write)])
    sequence = builders.build_kernel(invocation)
    assert run(sequence, arena) == 0
    expected = (arrays["x"].astype("f8") ** 2 * arrays["w"]).sum(axis=1)
    assert np.abs(arena.fetch(write) - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.usefixtures("spectra")
def test_an_operator_without_a_triton_kernel_is_refused_on_gpus() -> None:
    operator = build(MODEL, "m.ein").nodes[0].operator
    view = as_layout(Arena().place(np.zeros((4, 8), "f4")))
    with pytest.raises(MissingFault, match="'power_spectrum' has no kernel for GPUs"):
        builders.build_kernel(Invocation("custom", dict(operator.kernel.attributes), [view], [view]))
