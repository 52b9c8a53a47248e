"""`einc compile --compare`: what a model would cost on other machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc_runtime.plan.codec import decode

FFN = (
    "model ffn\ndim tokens=64\ndim d=24\ndim f=48\ninput x: f16[tokens,d]\nweight w1: f16[d,f]\nweight w2: f16[f,d]\n"
    "h = relu(matmul(x, w1))\ny = x + matmul(h, w2)\noutput y\n"
)


NAIVE = ("--schedule", "naive", "--selector", "eindecomp")
"""What is tested here does not depend on it, and it is fast."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "ffn.ein").write_text(FFN)
    return tmp_path / "ffn.ein"


def small_machine(path: Path, memory: int) -> str:
    site = {"hbm_gbs": 100, "memory_bytes": memory, "flops": {"f16": 1e12}}
    rule = {"kind": "switch", "name": "s", "gbs": 10}
    path.write_text(json.dumps({"name": path.stem, "sites": [site] * 3, "rules": [rule]}))
    return str(path)


def test_rows_are_what_the_plans_for_those_machines_say(model: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    three = small_machine(tmp_path / "three.json", 1 << 20)
    machines = ("dgx-v100", "dgx-h100", three)
    options = [argument for name in machines for argument in ("--compare", name)]
    target = tmp_path / "p.bin"
    document = einc("compile", model, "-m", "dgx-a100", *NAIVE, "-o", target, *options, "--json").json()
    rows = document["comparison"]
    assert [(row["machine"], row["devices"]) for row in rows] == [
        ("dgx-a100", 8), ("dgx-v100", 8), ("dgx-h100", 8), ("three", 3),
    ]  # fmt: skip
    assert decode(target.read_bytes()).machine == "dgx-a100"
    assert document["predicted_ms"] == rows[0]["predicted_ms"] == decode(target.read_bytes()).predicted_ms
    for row, machine in zip(rows, ("dgx-a100", *machines), strict=True):
        alone = einc("explain", model, "-m", machine, *NAIVE, "--json").json()
        assert row["predicted_ms"] == alone["predicted_ms"] > 0
        assert row["total_cost"] == alone["total_cost"]
        assert row["memory_bytes"] == max(alone["memory_bytes"])
        assert row["compute_ms"] + row["exchange_ms"] == pytest.approx(row["predicted_ms"])
        assert row["ratio"] == pytest.approx(row["predicted_ms"] / rows[0]["predicted_ms"])


def test_the_number_of_sites_is_kept_as_far_as_there_are_any(
    model: Path, einc: Callable[..., Any], tmp_path: Path
) -> None:
    three = small_machine(tmp_path / "three.json", 1 << 20)
    for devices, expected in (("5", [5, 5, 5, 3]), ("1,6", [2, 2, 2, 2])):
        options = ("--compare", "gb200-nvl72", "--compare", "host", "--compare", three)
        document = einc("compile", model, "-m", "dgx-v100", *NAIVE, "--devices", devices, *options, "--json").json()
        assert [row["devices"] for row in document["comparison"]] == expected


def test_instances_and_files_have_the_names_that_were_given(
    model: Path, einc: Callable[..., Any], tmp_path: Path
) -> None:
    files = [small_machine(tmp_path / f"{name}.json", 1 << 20) for name in ("near", "far")]
    for file in files:
        Path(file).write_text(Path(file).read_text().replace('"near"', '"box"').replace('"far"', '"box"'))
    names = ("p4d.24xlarge", *files, small_machine(tmp_path / "tiny.json", 1))
    options = [argument for name in names for argument in ("--compare", name)]
    shown = einc("compile", model, "-m", "dgx-a100", *NAIVE, *options).out.splitlines()
    assert [line.split()[0] for line in shown[1:6]] == ["dgx-a100", "p4d.24xlarge", "near", "far", "tiny"]
    assert shown[-1].startswith("tiny, 3 sites: ")


def test_the_table(model: Path, einc: Callable[..., Any]) -> None:
    shown = einc("compile", model, "-m", "dgx-a100", *NAIVE, "--compare", "dgx-h100")
    rows = einc("compile", model, "-m", "dgx-a100", *NAIVE, "--compare", "dgx-h100", "--json").json()["comparison"]
    heading, first, second = shown.out.splitlines()
    assert heading.split()[:2] == ["machine", "sites"]
    for line, row in ((first, rows[0]), (second, rows[1])):
        cells = line.split()
        assert cells[:3] == [row["machine"], str(row["devices"]), f"{row['predicted_ms']:.3f}"]
        assert cells[-1] == f"{row['ratio']:.2f}"


def test_types_without_a_peak_are_told(model: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    """bf16 takes eight times as long on a V100 as f16 because no peak is listed: nobody should take it for more."""
    told = "dgx-v100 lists no FLOP/s for bf16: timed as f32"
    bf16 = ("compile", model, *NAIVE, "--dtype", "bf16", "-m")
    shown = einc(*bf16, "dgx-a100", "--compare", "dgx-v100", "--compare", "dgx-v100:4")
    assert shown.out.splitlines()[4:] == [told]
    rows = einc(*bf16, "dgx-a100", "--compare", "dgx-v100", "--json").json()["comparison"]
    assert [row["note"] for row in rows] == [None, told]
    plan = tmp_path / "p.bin"
    assert f"einc: {told}" in einc(*bf16, "dgx-v100", "-o", plan).err.splitlines()
    assert told in einc("explain", plan).out.splitlines()
    assert einc("explain", plan, "--json").json()["note"] == told
    bare = small_machine(tmp_path / "bare.json", 1 << 20)  # f16 alone
    shown = einc("compile", model, *NAIVE, "-m", bare, "-o", plan)
    assert "bare lists no FLOP/s for f32: timed as if computing took no time, its bytes alone" in shown.err


def test_a_machine_that_is_too_small_has_that_for_an_answer(
    model: Path, einc: Callable[..., Any], tmp_path: Path
) -> None:
    tiny = small_machine(tmp_path / "tiny.json", 4096)
    shown = einc("compile", model, "-m", "dgx-a100", *NAIVE, "--compare", tiny)
    assert shown.code == 0
    assert "tiny, 3 sites: " in shown.out.splitlines()[-1]
    row = einc("compile", model, "-m", "dgx-a100", *NAIVE, "--compare", tiny, "--json").json()["comparison"][1]
    assert row["predicted_ms"] is row["ratio"] is None
    assert "memory" in row["error"] or "bytes" in row["error"]
    assert einc("compile", model, "-m", tiny, *NAIVE, "--compare", "dgx-a100").code == 69


def test_machines_that_are_not_there_are_found_before_anything_long(
    model: Path, einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a compilation was begun")

    monkeypatch.setattr("einc.compiler.compile_model", never)
    target = tmp_path / "p.bin"
    for name, code in (("dgx-w100", 2), ("missing.json", 2), (str(model), 65)):
        shown = einc("compile", model, "-m", "dgx-a100", *NAIVE, "-o", target, "--compare", name)
        assert shown.code == code
        assert not target.exists()
    (tmp_path / "broken.json").write_text('{"name": 1}')
    assert einc("compile", model, "-o", target, "--compare", tmp_path / "broken.json").code == 65


def test_a_plan_on_standard_output_leaves_no_room_for_a_table(model: Path, einc: Callable[..., Any]) -> None:
    assert einc("compile", model, "-m", "dgx-a100", *NAIVE, "-o", "-", "--compare", "dgx-h100").code == 2


def test_sites_behind_a_colon_are_those_of_that_machine_alone(
    model: Path, einc: Callable[..., Any], tmp_path: Path
) -> None:
    three = small_machine(tmp_path / "a:2", 1 << 20)  # a name of a file that looks like sites
    machines = ("dgx-v100:3", "dgx-v100:0,3", "host:4", three, f"{three}:2")
    options = [argument for name in machines for argument in ("--compare", name)]
    rows = einc("compile", model, "-m", "dgx-v100", *NAIVE, "--devices", "5", *options, "--json").json()["comparison"]
    assert [row["devices"] for row in rows] == [5, 3, 2, 4, 3, 2]
    pair = einc("explain", model, "-m", "dgx-v100", *NAIVE, "--devices", "0,3", "--json").json()
    assert rows[2]["predicted_ms"] == pair["predicted_ms"] != rows[1]["predicted_ms"]


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ("dgx-a100:9", 65, "9 sites were asked for"),
        ("dgx-a100:1,8", 65, "site 8 was asked for"),
        ("dgx-a100:", 2, "no machine 'dgx-a100:'"),
        ("dgx-a100:2,", 2, "no machine 'dgx-a100:2,'"),
        ("dgx-a100:0", 2, "at least one site"),
        ("dgx-a1:2", 2, "no machine 'dgx-a1'"),
        ("dgx-a100:x", 2, "no machine 'dgx-a100:x'"),
    ],
)
def test_wrong_sites_are_told_before_anything_is_compiled(
    einc: Callable[..., Any], tmp_path: Path, wrong: str, code: int, message: str
) -> None:
    (tmp_path / "broken.ein").write_text("model m\noutput nothing\n")
    result = einc("compile", tmp_path / "broken.ein", "-m", "dgx-a100", "--compare", wrong)
    assert result.code == code
    assert message in result.err


def test_sites_behind_a_colon_are_those_of_the_option(model: Path, einc: Callable[..., Any]) -> None:
    for machine, devices in (("dgx-a100:3", "3"), ("dgx-v100:0,5", "0,5"), ("host:2", "2")):
        name = machine.partition(":")[0]
        short = einc("explain", model, "-m", machine, *NAIVE, "--json").json()
        assert short == einc("explain", model, "-m", name, "--devices", devices, *NAIVE, "--json").json()
    twice = einc("explain", model, "-m", "dgx-a100:3", "--devices", "3")
    assert twice.code == 2
    assert "dgx-a100:3 names sites, and others are asked for" in twice.err
