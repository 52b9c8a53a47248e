"""`einc compile` and `einc check`: plans, stages, determinism, and models that are wrong."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.exchange.synthesis import synthesize
from einc.physical import placer
from einc_runtime.plan.codec import decode
from einc_runtime.plan.proof import prove
from tests.support.paced import within

MODELS = Path(__file__).parents[2] / "models"

SMALL = """\
model small

dim i = 9
dim j = 14
dim k = 5

input x : f32[i, j]
weight w : f32[j, k]

h = matmul(x, w)
y = relu(h)

output y
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.ein"
    path.write_text(SMALL)
    return path


def test_a_plan_is_written_and_summed_up(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "p.bin"
    result = einc("compile", model, "-m", "dgx-a100", "-o", plan)
    assert (result.code, result.out) == (0, "")
    assert str(plan) in result.err
    bundle = decode(plan.read_bytes())
    assert (bundle.model, len(bundle.devices), bundle.machine) == ("small", 8, "dgx-a100")
    assert [entry.name for entry in tmp_path.iterdir()] != []
    document = einc("compile", model, "-m", "dgx-a100", "-o", plan, "--json").json()
    assert document["total_cost"] == bundle.total_cost
    assert document["bytes"] == plan.stat().st_size
    assert document["memory_bytes"] == list(bundle.memory)


def test_a_plan_without_a_name_is_named_after_its_model(
    einc: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert einc("compile", model, "-m", "dgx-a100:2").code == 0
    assert decode((tmp_path / "small.bin").read_bytes()).devices == (0, 1)
    result = einc("compile", "-", "-m", "dgx-a100:2")
    assert result.code == 2
    assert "give -o PLAN" in result.err
    assert "dgx-h100:2 is two sites" in einc("compile", model, "-m", "8xH100").err


def test_devices_are_a_number_or_a_list(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    for devices, expected in (("3", (0, 1, 2)), ("6,0,5", (6, 0, 5)), ("7,", None), ("1,x", None), ("-1", None)):
        result = einc("compile", model, "-m", "dgx-v100", "--devices", devices, "-o", tmp_path / "p.bin")
        if expected is None:
            assert result.code == 2
        else:
            assert result.code == 0
            assert decode((tmp_path / "p.bin").read_bytes()).devices == expected


def test_latencies_are_left_out_where_that_is_asked_for(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    times = []
    for options, latencies in (((), {"transfer": 4.0, "kernel": 2.0}), (("--ideal",), {"transfer": 0, "kernel": 0})):
        einc("compile", model, "-m", "dgx-a100", "-o", tmp_path / "p.bin", *options)
        plan = decode((tmp_path / "p.bin").read_bytes())
        assert json.loads(plan.machine_file)["latency_us"] == latencies
        times.append(plan.predicted_ms)
    assert times[1] < times[0]


def test_too_many_devices_are_refused(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    for devices in ("9", "0,8"):
        result = einc("compile", model, "-m", "dgx-a100", "--devices", devices, "-o", tmp_path / "p.bin")
        assert result.code == 65
        assert "has 8" in result.err
    for devices in ("0", "1,1", "999999"):
        assert einc("compile", model, "-m", "host", "--devices", devices, "-o", tmp_path / "p.bin").code == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["small.ein"]


def test_with_no_machine_the_host_is_it_and_a_line_says_so(
    einc: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    result = einc("compile", model, "--devices", "3", "-o", tmp_path / "p.bin")
    assert result.code == 0
    assert "no machine was named" in result.err.splitlines()[0]
    assert len(decode((tmp_path / "p.bin").read_bytes()).devices) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stage", ["source-graph", "graph", "search", "logical", "exprog", "device", "bundle"])
def test_every_stage_has_a_text(stage: str, einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    result = einc("compile", model, "-m", "dgx-a100", "--emit", stage)
    assert (result.code, result.err) == (0, "")
    assert result.out.strip()
    both = einc("compile", model, "-m", "dgx-a100", "--emit", stage, "-o", tmp_path / "p.bin", "--json").json()
    assert both["emit"] == {
        "stage": stage,
        "text": result.out if both["emit"]["text"].endswith("\n") else result.out[:-1],
    }
    assert decode((tmp_path / "p.bin").read_bytes()).model == "small"


def test_the_graph_is_shown_before_and_after_fusion(einc: Callable[..., Any], tmp_path: Path) -> None:
    chain = tmp_path / "chain.ein"
    chain.write_text("dim n = 4\ninput x : f32[n]\ny = exp(x)\noutput z = tanh(y)\n")
    before = einc("compile", chain, "--emit", "source-graph").out.splitlines()
    after = einc("compile", chain, "--emit", "graph").out.splitlines()
    assert [line.split(" ")[0] for line in before] == ["graph", "input", "y", "z", "output"]
    assert [line.split(" ")[0] for line in after] == ["graph", "input", "z", "output"]


def test_the_emitted_texts_can_be_read_again(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    bundle = json.loads(einc("compile", model, "-m", "dgx-a100", "--emit", "bundle").out)
    assert bundle["model"] == "small"
    programs = einc("compile", model, "-m", "dgx-a100", "--emit", "exprog", "--selector", "eindecomp").out
    first = programs.split("\n\n#")[0]
    (tmp_path / "first.ex").write_text(first)
    assert einc("exprog", "check", tmp_path / "first.ex", "-m", "dgx-a100").code == 0


def test_an_early_stage_is_shown_where_a_later_one_fails(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    huge = ("-D", "i=10000000", "-D", "j=10000000", "-m", "dgx-a100", "--selector", "eindecomp", "--schedule", "naive")
    result = einc("compile", model, *huge, "-o", tmp_path / "p.bin")
    assert result.code == 69
    assert "memory" in result.err
    assert not (tmp_path / "p.bin").exists()
    assert einc("compile", model, *huge, "--emit", "logical").code == 0


def test_the_same_bytes_anywhere(start: Callable[..., subprocess.Popen[bytes]], model: Path, tmp_path: Path) -> None:
    """Other directories, hash seeds, locales, time zones, and ways of naming the model's file."""
    elsewhere = tmp_path / "else where" / "ä"
    elsewhere.mkdir(parents=True)
    (elsewhere / "small.ein").write_text(SMALL)
    runs = [
        start("compile", path, "-m", "dgx-a100", "-o", "-", cwd=cwd, env=env)
        for (path, cwd), env in zip(
            [(model, tmp_path), ("../../small.ein", elsewhere), ("small.ein", tmp_path)],
            [
                {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8"},
                {"PYTHONHASHSEED": "2", "LANG": "tr_TR.UTF-8", "TZ": "Asia/Tokyo"},
                {"PYTHONHASHSEED": "3", "LC_ALL": "POSIX", "PYTHONUTF8": "0"},
            ],
            strict=True,
        )
    ]
    plans = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(set(plans)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALL[:60], ""),
        (SMALL.replace("w)", "v)"), "v"),
        (SMALL.replace("i = 9", "i = 0"), ""),
        (SMALL.replace("i = 9", "i = -1"), ""),
        (SMALL.replace("i = 9", f"i = {2**63}"), ""),
        (SMALL.replace("f32[j, k]", "f32[k, j]"), ""),
        (SMALL.replace("relu(h)", "rleu(h)"), "did you mean 'relu'?"),
        (SMALL.replace("relu(h)", "relu(y)"), ""),
        (SMALL + "h = relu(x)\n", "h"),
        (SMALL.replace("relu(h)", "(" * 20_000 + "h" + ")" * 20_000), ""),
        ("\0" * 100, ""),
        ("", ""),
        ("model m\n", ""),
    ],
    ids=range(13),
)
def test_a_wrong_model_is_one_clear_error(text: str, words: str, einc: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "m.ein"
    path.write_text(text)
    with within(20):
        result = einc("compile", path, "-m", "dgx-a100", "-o", tmp_path / "p.bin")
    assert result.code == 65
    assert result.out == ""
    assert words in result.err
    assert len(result.err) < 20_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.ein"]
    assert einc("check", path, "--json").json()["error"]["code"] == "model"


def test_bytes_that_are_no_text_are_pointed_at(einc: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "m.ein"
    path.write_bytes(b"model m\ndim i = 4\xff\n")
    result = einc("check", path)
    assert result.code == 65
    assert f"{path}:2:10: the byte 0xff is no UTF-8 text" in result.err
    path.write_bytes(os.urandom(100_000))
    assert einc("check", path).code == 65


def test_a_byte_order_mark_and_crlf_are_no_errors(einc: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "m.ein"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert einc("check", path).code == 0


def test_check_tells_what_it_found(einc: Callable[..., Any], model: Path) -> None:
    result = einc("check", model)
    assert result.code == 0
    assert "1 input, 1 weight, 2 operators" in result.out
    document = einc("check", model, "-D", "i=3", "--dtype", "f16", "--json").json()
    assert document["outputs"] == ["y"]
    assert document["tensors"][0] == {
        "name": "x", "kind": "input", "dims": ["i", "j"], "shape": [3, 14], "dtype": "f16", "stored": None
    }  # fmt: skip
    model.write_text('model m\ndim n = 2\nweight w : f32[n] from "a.b"\nweight v : f32[n]\noutput y = w + v\n')
    stored = {tensor["name"]: tensor["stored"] for tensor in einc("check", model, "--json").json()["tensors"]}
    assert stored == {"w": "a.b", "v": "v", "y": None}


def test_all_findings_are_reported_together(einc: Callable[..., Any], model: Path) -> None:
    model.write_text(SMALL.replace("w)", "v)").replace("output y", "output z"))
    findings = einc("check", model, "--json").json()["error"]["findings"]
    assert len(findings) >= 2
    assert all(finding["where"].startswith(f"{model}:") for finding in findings)


@pytest.mark.parametrize("arguments", [("-D", "i"), ("-D", "=3"), ("-D", "i=1", "-D", "i=2"), ("--seed", "-1"),
                                       ("--time-limit", "0"), ("--selector", "best"), ("--dtype", "f8")])  # fmt: skip
def test_options_are_checked(arguments: tuple[str, ...], einc: Callable[..., Any], model: Path) -> None:
    assert einc("compile", model, *arguments, "--emit", "graph").code == 2


def test_unknown_names_in_options_are_model_errors(einc: Callable[..., Any], model: Path) -> None:
    for arguments in (("-D", "ii=3"), ("-D", "i=("), ("--preset", "long")):
        assert einc("compile", model, *arguments, "--emit", "graph").code == 65


CHAIN = ("compile", MODELS / "chain_b.ein", "-m", "dgx-v100", "--devices", "4", "--selector", "random")


DIGITS = ("compile", MODELS / "digits.ein", "-m", "dgx-a100", "--devices", "2", "--ideal")


def test_both_words_for_the_synthesized_schedule_give_the_same_plan(einc: Callable[..., Any], tmp_path: Path) -> None:
    plans = []
    for number, more in enumerate(((), ("--schedule", "ai"))):
        assert einc(*DIGITS, *more, "-o", tmp_path / f"{number}.bin").code == 0
        plans.append((tmp_path / f"{number}.bin").read_bytes())
    assert plans[0] == plans[1]
    result = einc(*DIGITS, "--schedule", "best", "-o", tmp_path / "p.bin")
    assert result.code == 2
    assert "'synthesized' (or 'ai'), 'naive'" in result.err


def test_exchanges_are_synthesized_unless_told_otherwise(einc: Callable[..., Any], tmp_path: Path) -> None:
    results = {}
    for schedule in ("synthesized", "naive"):
        more = () if schedule == "synthesized" else ("--schedule", "naive")
        results[schedule] = einc(*CHAIN, "--ideal", *more, "--json", "-o", tmp_path / "p.bin").json()
        assert results[schedule]["schedule"] == schedule
        assert einc("verify", tmp_path / "p.bin").code == 0
    assert results["synthesized"]["exchanges"]
    for exchange in results["synthesized"]["exchanges"]:
        assert 0 < exchange["bound_free_ms"] <= exchange["bound_ms"] <= exchange["completion_ms"] * (1 + 1e-9)
        assert exchange["completion_ms"] <= exchange["naive_ms"]
        assert exchange["bound_by"]
    assert results["synthesized"]["predicted_ms"] <= results["naive"]["predicted_ms"]


def test_where_inputs_start_is_chosen_kept_and_told(einc: Callable[..., Any], tmp_path: Path) -> None:
    target, documents = tmp_path / "p.bin", {}
    arguments = ("-m", "dgx-a100", "--devices", "4", "-D", "scale=100", "--selector", "eindecomp")
    for placement in (None, "replicated", "once"):
        more = () if placement is None else ("--input-placement", placement)
        summary = einc("compile", MODELS / "chain_c.ein", *arguments, *more, "--json", "-o", target).json()
        documents[placement] = explained = einc("explain", target, "--json").json()
        assert summary["input_placement"] == explained["input_placement"] == (placement or "replicated")
        assert einc("describe", target, "--json").json()["input_placement"] == explained["input_placement"]
        assert einc("verify", target).code == 0
        assert einc("run", target, "--inputs", "rand:1", "--weights", "rand:2", "--check").code == 0
    assert documents[None] == documents["replicated"] != documents["once"]
    (m1,) = documents["once"]["inputs"]
    assert sum((x1 - x0) * (y1 - y0) for (x0, y0), (x1, y1) in m1["blocks"]) == 102 * 122
    assert {weight["copies"] for weight in documents["once"]["weights"]} == {1}
    moved = {name: sum(op["moves"]["bytes"] for op in document["ops"]) for name, document in documents.items()}
    assert moved["once"] > moved["replicated"]
    assert "input placement once)" in einc("explain", target).out
    assert "every block lies on one site when the clock starts" in einc("explain", target).out
    assert einc("compile", MODELS / "chain_c.ein", "--input-placement", "twice", "-o", target).code == 2


def test_plans_are_the_same_whenever_they_are_made(einc: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert (
            einc("compile", model, "-m", "dgx-a100", "--selector", "random", "--seed", "3", "-o", tmp_path / name).code
            == 0
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_time_limit_leaves_a_plan(einc: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "p.bin"
    arguments = ("compile", MODELS / "chain_a.ein", "-m", "dgx-v100", "--time-limit", "0.001", "-o", target)
    with within(20):
        assert einc(*arguments).code == 0
    assert einc("verify", target).code == 0


def test_an_interrupt_of_the_search_keeps_the_best(
    einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of the second search: no other is begun."""
    searches = itertools.count()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(searches) == 1:
            signal.raise_signal(signal.SIGINT)
        return synthesize(*arguments, **options)

    monkeypatch.setattr("einc.physical.synthesis.synthesize", interrupted)
    result = einc(*CHAIN, "-o", tmp_path / "p.bin")
    assert result.code == 0
    assert "best exchange programs found so far" in result.err
    assert next(searches) == 2
    plan = decode((tmp_path / "p.bin").read_bytes())
    assert plan.schedule == "synthesized"
    prove(plan)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("einc.physical.placer.Lowering.finish", 0),
        ("einc.logical.optimize.build_problem", 130),
        pytest.param("einc.physical.records.emit", 130, marks=pytest.mark.slow),
    ],
)
def test_interrupts_between_searches_and_elsewhere(
    function: str, code: int, einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = function.rsplit(".", 1)
    owner = importlib.import_module(module) if module.islower() else placer.Lowering
    real = getattr(owner, name)
    pressed = []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)
    result = einc(*CHAIN, "-o", tmp_path / "p.bin")
    assert pressed
    assert result.code == code
    assert (tmp_path / "p.bin").exists() is (code == 0)


@pytest.mark.parametrize("moment", [0.3, pytest.param(1.2, marks=pytest.mark.slow)])
def test_an_interrupt_in_any_phase_leaves_nothing(
    moment: float, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """An interrupt at a moment of a compilation; `make interrupts` tries hundreds."""
    model, target = tmp_path / "ffn.ein", tmp_path / "p.bin"
    os.mkfifo(model)
    arguments = ("-m", "gb200-nvl72", "--schedule", "naive", "-o", target)
    process = start("compile", model, *arguments, start_new_session=True)
    model.write_text((MODELS / "ffn.ein").read_text())  # when it is read: before, interrupts may be Python's
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode in (0, 130), err
    if process.returncode == 0 or target.exists():  # it was done already
        prove(decode(target.read_bytes()))
        target.unlink()
    assert out == b""
    assert b"Traceback" not in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["ffn.ein"]
