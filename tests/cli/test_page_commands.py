"""`--html` of every command that has it, and `einc explain --format`: what is written, printed and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.cli.main import main
from tests.support.page_data import read_page_data, restore_parts

MODELS = Path(__file__).parents[2] / "models"
FFN = ("-D", "tokens=50", "-D", "d_model=24", "-D", "d_ff=100")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "ffn.bin"
    arguments = ["-m", "host", "--devices", "3", "--selector", "random", "-o", str(path)]
    assert main(["compile", str(MODELS / "ffn.ein"), *FFN, *arguments]) == 0
    return path


def test_explain_writes_a_page(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    done = einc("explain", plan, "--html", page)
    assert (done.code, done.out) == (0, "")
    assert f"{page.stat().st_size:,} bytes" in done.err
    shown = einc("explain", plan, "--html", page, "--json")
    assert restore_parts(read_page_data(page.read_text())) == shown.json()
    assert einc("explain", plan, "--html", "-").out + "\n" == einc("explain", plan, "--format", "html").out
    assert page.read_text() == einc("explain", plan, "--format", "html").out.removesuffix("\n")
    assert einc("explain", plan, "--ideal", "--html", page).code == 0
    assert restore_parts(read_page_data(page.read_text())) == einc("explain", plan, "--ideal", "--json").json()


def test_compile_writes_the_same_page(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    options = (MODELS / "ffn.ein", *FFN, "-m", "host", "--devices", 3, "--selector", "random")
    assert einc("compile", *options, "--html", tmp_path / "a.html").code == 0
    assert einc("explain", *options, "--html", tmp_path / "b.html").code == 0
    assert einc("explain", plan, "--html", tmp_path / "c.html").code == 0
    pages = {(tmp_path / name).read_bytes() for name in ("a.html", "b.html", "c.html")}
    assert len(pages) == 1


def test_a_page_compares_plans_and_shows_a_trace(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    page, trace = tmp_path / "r.html", tmp_path / "t.json"
    assert einc("run", plan, "--inputs", "rand:0", "--weights", "rand:1", "--trace", trace).code == 0
    before = trace.read_bytes()
    assert einc("explain", plan, "--html", page, "--trace", trace, "--compare", plan).code == 0
    assert trace.read_bytes() == before
    data = read_page_data(page.read_text())
    events = [event for event in json.loads(before)["traceEvents"] if event["ph"] == "X"]
    assert sum(start >= 0 for start in data["measured"]["start"]) == len({event["args"]["task"] for event in events})
    assert data["measured"]["end"] == pytest.approx(max(1e3 * (event["ts"] + event["dur"]) for event in events), abs=2)
    assert data["comparison"]["differences"]["equal"] is True
    assert "measured" in page.read_text().split("<script")[0]


def test_formats_print_one_thing(plan: Path, einc: Callable[..., Any]) -> None:
    assert einc("explain", plan, "--format", "json").out == einc("explain", plan, "--json").out
    assert einc("explain", plan, "--format", "text").out == einc("explain", plan).out
    assert einc("explain", plan, "--format", "dot").out.startswith("digraph plan {\n")
    assert einc("explain", plan, "--format", "mermaid").out.startswith("flowchart TD\n")
    assert "hidden = relu" in einc("explain", plan, "--format", "mermaid").out


@pytest.mark.parametrize(
    "options",
    [
        ("--html", "r.html", "--op", "y"),
        ("--format", "dot", "--all-specs"),
        ("--html", "r.html", "--preamble", "y"),
        ("--json", "--format", "dot"),
        ("--html", "-", "--json"),
        ("--html", "r.html", "--trace", "missing.json"),
        ("--format", "pdf"),
    ],
)
def test_contradictions_are_wrong_usage(
    plan: Path, einc: Callable[..., Any], options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert einc("explain", plan, *options).code == 2
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_trace_is_bad_input(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[]")
    refused = einc("explain", plan, "--html", tmp_path / "r.html", "--trace", tmp_path / "t.json")
    assert refused.code == 65
    assert "no trace" in refused.err
    assert not (tmp_path / "r.html").exists()
    assert einc("explain", plan, "--html", plan).code == 2
    assert einc("explain", plan, "--html", tmp_path / "t.json", "--trace", tmp_path / "t.json").code == 2
    assert einc("explain", plan, "--html", tmp_path / "missing" / "r.html").code == 73


def test_machines_and_programs_have_pages(einc: Callable[..., Any], tmp_path: Path) -> None:
    assert einc("machine", "show", "dgx-v100", "--html", tmp_path / "m.html").out == ""
    assert len(read_page_data((tmp_path / "m.html").read_text())["machine"]["resources"]) == 33
    program, page = MODELS / "exchanges" / "cube-mesh.exprog", tmp_path / "x.html"
    done = einc("exprog", "simulate", program, "-m", "dgx-v100", "--html", page, "--json")
    (row,) = read_page_data(page.read_text())["programs"]
    assert row["exchange"]["program"] == done.json()["program"]
    assert row["exchange"]["completion_ms"] == done.json()["completion_ms"]
    assert row["drawn"]["completion_ms"] == pytest.approx(done.json()["completion_ms"], rel=1e-11)  # twelve digits
    assert f"{done.json()['bound_ms']:,.1f} ms" in page.read_text()
    assert einc("exprog", "simulate", program, "-m", "dgx-v100", "--html", "-", "--json").code == 2


def test_the_text_begins_with_three_lines_that_answer(einc: Callable[..., Any], tmp_path: Path) -> None:
    options = (
        "-m",
        "host",
        "--devices",
        2,
        "-D",
        "n_layers=4",
        "-D",
        "batch=1",
        "-D",
        "length=64",
        "--selector",
        "greedy",
    )
    text = einc("explain", MODELS / "llama.ein", *options, "--schedule", "naive").out
    answer, limit, advice, blank = text.splitlines()[:4]
    assert re.match(r"llama on 2 sites of host: [\d.]+ ms", answer)
    assert re.match(
        r"limited by computing, \d+% of the time \(\d+% of the peak\); exchanges \d+%; [\d.]+ GiB per site$", limit
    )
    assert advice == "to try: --selector fastest, which looks for the least predicted time"
    assert not blank
