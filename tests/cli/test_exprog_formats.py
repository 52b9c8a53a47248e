"""`einc exprog import`, `export`, `check` and `bound` on algorithms of MSCCL and MSCCL++."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.collective_cases import ring_allreduce
from tests.support.published_bugs import PLAN_BUGS, XML_BUGS


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "ring.xml"
    path.write_text(ring_allreduce(4).text(), encoding="utf-8")
    return path


def test_import_export_import_is_the_same_program(ring: Path, tmp_path: Path, einc: Callable[..., Any]) -> None:
    first, again = tmp_path / "a.exprog", tmp_path / "b.exprog"
    assert einc("exprog", "import", ring, "--format", "msccl-xml", "--chunk", "64KiB", "-o", first).code == 0
    assert "(size: 65536 B)" in first.read_text(encoding="utf-8")
    for form, foreign in (("msccl-xml", tmp_path / "c.xml"), ("mscclpp-json", tmp_path / "c.json")):
        assert einc("exprog", "export", first, "--format", form, "-o", foreign).code == 0
        assert einc("exprog", "import", foreign, "--format", form, "--chunk", "64KiB", "-o", again).code == 0
        assert again.read_bytes() == first.read_bytes()
        assert einc("exprog", "check", foreign).out == f"{foreign}: valid\n"
    document = einc("exprog", "import", ring, "--format", "msccl-xml", "--json").json()
    assert {name: document[name] for name in ("collective", "gpus", "chunks", "steps")} == {
        "collective": "allreduce", "gpus": 4, "chunks": 4, "steps": 28
    }  # fmt: skip


def test_bound_says_how_far_from_the_optimum(ring: Path, tmp_path: Path, einc: Callable[..., Any]) -> None:
    document = einc("exprog", "bound", ring, "-m", "dgx-a100", "--ideal", "--chunk", "250MB", "--json").json()
    assert document["bound_ms"] == pytest.approx(5.0, rel=1e-6)  # 6/4 GB through 300 GB/s of each of the four
    assert document["completion_ms"] >= document["bound_ms"]
    assert document["ratio"] == document["completion_ms"] / document["bound_ms"]
    timed = einc("exprog", "simulate", ring, "-m", "dgx-a100", "--ideal", "--json").json()
    assert document["completion_ms"] == pytest.approx(250 * timed["completion_ms"])
    text = einc("exprog", "bound", ring, "-m", "dgx-a100").out
    assert text.startswith("no program takes less than ")
    assert "this one takes " in text
    (tmp_path / "p.exprog").write_text("IN: A@0\nOUT: A@1\n", encoding="utf-8")
    alone = einc("exprog", "bound", tmp_path / "p.exprog", "-m", "dgx-a100", "--json").json()
    assert alone["completion_ms"] is None is alone["ratio"]
    assert alone["bound_ms"] > 3


def test_the_page_shows_what_is_printed(tmp_path: Path, einc: Callable[..., Any]) -> None:
    (tmp_path / "ring.xml").write_text(ring_allreduce(8).text(), encoding="utf-8")
    options = ["-m", "dgx-a100", "--ideal", "--chunk", "64MiB"]
    page = (Path(__file__).parents[2] / "docs/msccl.md").read_text(encoding="utf-8")
    printed = einc("exprog", "bound", tmp_path / "ring.xml", *options).out.splitlines()
    assert [line for line in printed if f"    {line}" not in page.splitlines()] == []


def test_faults_are_told_with_their_lines(tmp_path: Path, einc: Callable[..., Any]) -> None:
    path = tmp_path / "broken"
    for bug in (XML_BUGS[9], PLAN_BUGS[4]):
        path.write_text(bug.text, encoding="utf-8")
        result = einc("exprog", "check", path, "--json")
        assert result.code == 1
        document = result.json()
        assert document["valid"] is False
        assert any(bug.fault in fault["message"] for fault in document["faults"])
        assert all(fault["where"].startswith(f"{path}:") for fault in document["faults"])
        for command in (("bound", path, "-m", "dgx-a100"), ("simulate", path, "-m", "dgx-a100")):
            refused = einc("exprog", *command)
            assert (refused.code, bug.fault in refused.err) == (65, True)


def test_what_is_no_algorithm_is_refused(tmp_path: Path, einc: Callable[..., Any], ring: Path) -> None:
    (tmp_path / "x.xml").write_text("<!DOCTYPE a [<!ENTITY b 'c'>]><algo/>", encoding="utf-8")
    result = einc("exprog", "import", tmp_path / "x.xml", "--format", "msccl-xml")
    assert (result.code, "document type" in result.err) == (65, True)
    assert einc("exprog", "import", ring, "--format", "mscclpp-json").code == 65
    assert einc("exprog", "import", ring).out == einc("exprog", "import", ring, "--format", "msccl-xml").out != ""
    assert einc("exprog", "export", ring).code == 2
    assert einc("exprog", "export", ring, "--format", "msccl-xml").code == 65
    waiting = "IN: A@0; B@1\nOUT: A@0,1; B@0,1\nA@0->1 after (B@1->0); B@1->0\n"
    (tmp_path / "w.exprog").write_text(waiting, encoding="utf-8")
    assert "an exchange program needs no import" in einc("exprog", "import", tmp_path / "w.exprog").err
    arguments = ("exprog", "export", tmp_path / "w.exprog", "--format", "msccl-xml")
    assert einc(*arguments).code == 65
    assert einc(*arguments, "--drop-waits").code == 0
    (tmp_path / "p.exprog").write_text("IN: A@0; B@1\nOUT: A+B@0\nB@1->0; A+B@0\n", encoding="utf-8")
    assert einc("exprog", "export", tmp_path / "p.exprog", "--format", "msccl-xml").code == 65


def test_models_and_programs_are_told_apart(tmp_path: Path, einc: Callable[..., Any]) -> None:
    (tmp_path / "m.ein").write_text("model m\ndim n = 6\ninput x : f32[n]\noutput y = relu(x)\n")
    (tmp_path / "p.exprog").write_text("IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1\n")
    checked, compiled = einc("exprog", "check", tmp_path / "m.ein"), einc("compile", tmp_path / "p.exprog")
    assert (checked.code, "this is a model, and no exchange program" in checked.err) == (2, True)
    assert (compiled.code, "einc exprog simulate FILE" in compiled.err) == (65, True)
