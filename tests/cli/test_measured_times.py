"""Nobody sees a predicted time without what it is worth: its range, or that nothing was measured of the GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.search import fastest
from tests.support.generation_cases import write_folder

FFN = (
    "model ffn\ndim tokens=64\ndim d=24\ndim f=48\ninput x : f16[tokens,d]\nweight w1 : f16[d,f]\n"
    "weight w2 : f16[f,d]\nh = relu(matmul(x, w1))\ny = x + matmul(h, w2)\noutput y\n"
)
MACHINES = ("dgx-h100", "dgx-v100")
RANGE = re.compile(r"\d(?: ms)?(?:,|  ) *[\d.]+ to [\d.]+")
"""After a time, or in the next column."""

TEXTS: dict[str, tuple[str, ...]] = {
    "compile": ("compile", "ffn.ein", "-m", "MACHINE", "-o", "again.bin"),
    "compile --compare": ("compile", "ffn.ein", "-m", "MACHINE", "--compare", "MACHINE:2"),
    "explain": ("explain", "plan.bin"),
    "explain --op": ("explain", "plan.bin", "--op", "h"),
    "explain --against": ("explain", "plan.bin", "--against", "other.bin"),
    "explain --preamble": ("explain", "plan.bin", "--preamble", "y.1"),
    "explain --format dot": ("explain", "plan.bin", "--format", "dot"),
    "diff": ("diff", "plan.bin", "other.bin"),
    "check": ("check", "plan.bin", "--assert", "predicted_ms <= 1000"),
    "describe": ("describe", "plan.bin"),
    "reshard": ("reshard", "other.bin", "plan.bin"),
    "advise": ("advise", "ffn.ein", "-m", "MACHINE:2"),
    "exprog simulate": ("exprog", "simulate", "swap.exprog", "-m", "MACHINE"),
    "exprog optimize": ("exprog", "optimize", "swap.exprog", "-m", "MACHINE", "-o", "fast.exprog"),
    "exprog bound": ("exprog", "bound", "swap.exprog", "-m", "MACHINE"),
}
"""Commands that print a time, with the machine's name in place of MACHINE."""

DOCUMENTS = [name for name in TEXTS if name != "explain --format dot"]

WHERE: dict[str, Callable[[Any], list[Any]]] = {
    "compile --compare": lambda document: document["comparison"],
    "explain --against": lambda document: [document, document["against"]],
    "diff": lambda document: [document["a"], document["b"]],
    "advise": lambda document: [plan for option in document["options"] for plan in option["plans"].values()],
}
"""Where a document has the rates; at its top, if nothing else is said."""


@pytest.fixture(scope="module", params=MACHINES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A machine, and a folder with a model, two plans of it for that machine, and an exchange program."""
    from einc.cli.main import main

    path = tmp_path_factory.mktemp(request.param)
    (path / "ffn.ein").write_text(FFN)
    options = ["-m", request.param, "--pin", "h=tokens/2,f/2"]
    for name, sites in (("plan", 4), ("other", 2)):
        command = ["compile", path / "ffn.ein", *options, "--devices", sites, "-o", path / f"{name}.bin"]
        assert main([str(argument) for argument in command]) == 0
        options = ["-m", request.param]
    assert main(["models", "copy", "swap", "-o", str(path / "swap.exprog")]) == 0
    return request.param, path


Run = Callable[..., Any]


def run(name: str, folder: tuple[str, Path], einc: Run, monkeypatch: pytest.MonkeyPatch, *more: str) -> Any:
    machine, path = folder
    monkeypatch.chdir(path)
    result = einc(*(argument.replace("MACHINE", machine) for argument in TEXTS[name]), *more)
    assert result.code in (0, 1), result.err  # `diff` finds differences
    return result


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", TEXTS)
def test_a_time_has_a_range_or_is_not_measured(
    name: str, folder: tuple[str, Path], einc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(name, folder, einc, monkeypatch)
    text = result.out + result.err
    assert ("not measured" in text) == (folder[0] == "dgx-v100"), text
    if folder[0] == "dgx-h100":
        assert RANGE.search(text), text


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_say_where_times_come_from(
    name: str, folder: tuple[str, Path], einc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = run(name, folder, einc, monkeypatch, "--json").json()
    rows = WHERE.get(name, lambda document: [document])(document)
    exchange = name.startswith("exprog") or name == "explain --preamble"
    for row in rows:
        assert row["rates"] == ("peak" if folder[0] == "dgx-v100" else "fitted")
        span = row["completion_range_ms" if exchange else "predicted_range_ms"]
        if folder[0] == "dgx-v100":
            assert span is None
            continue
        low, high = span
        time = row.get("completion_ms") if exchange else row.get("predicted_ms", (low + high) / 2)
        assert 0 < low < time < high


def test_machines_say_whether_their_gpus_were_measured(einc: Run, folder: tuple[str, Path]) -> None:
    machine, path = folder
    rows = {row["name"]: row["rates"] for row in einc("machine", "list", "--json").json()["machines"]}
    assert rows[machine] == ("peak" if machine == "dgx-v100" else "fitted")
    (line,) = (line for line in einc("machine", "list").out.splitlines() if line.split()[0] == machine)
    for text in (line, einc("machine", "show", machine).out):
        assert ("not measured" in text) == (machine == "dgx-v100")
    assert einc("machine", "show", machine, "--html", path / "machine.html").code == 0
    assert ("Kernels: not measured." in (path / "machine.html").read_text()) == (machine == "dgx-v100")


def test_pages_say_it_beside_their_figures(einc: Run, folder: tuple[str, Path]) -> None:
    machine, path = folder
    page = path / "page.html"
    for command in (("explain", path / "plan.bin"), ("exprog", "simulate", path / "swap.exprog", "-m", machine)):
        assert einc(*command, "--html", page).code == 0
        shown = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
        assert ("not measured" in shown) == (machine == "dgx-v100")
        if machine == "dgx-h100":
            assert re.search(r">[\d.]+ to [\d.]+ ms<", shown)


def test_without_latencies_nothing_was_measured(einc: Run, folder: tuple[str, Path]) -> None:
    document = einc("explain", folder[1] / "plan.bin", "--ideal", "--json").json()
    assert (document["rates"], document["predicted_range_ms"], document["choices"]) == ("peak", None, None)
    assert "not measured" in einc("explain", folder[1] / "plan.bin", "--ideal").out


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_plans_of_texts_say_it_in_their_document(
    einc: Run, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastest, "MAX_SEARCH_EFFORT", 300)
    model = write_folder(tmp_path / "tiny")
    options = ("--sites", 2, "--max-tokens", 2, "--plans", tmp_path / "plans")
    result = einc("generate", model, "w1 w2", "-m", machine, *options, "--json")
    assert result.code == 0, result.err
    for plan in json.loads(result.out)["plans"]:
        assert plan["rates"] == ("peak" if machine == "dgx-v100" else "fitted")
        assert (plan["predicted_range_ms"] is None) == (machine == "dgx-v100")
    assert ("ms predicted, not measured" in result.err) == (machine == "dgx-v100")
