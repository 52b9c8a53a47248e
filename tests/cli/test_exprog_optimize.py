"""`einc exprog optimize` from the outside."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "models"
PREAMBLE = "PARTITIONS: G1 {size 2}\nIN: A @ 0 (size: 10 MB); B @ 3 (size: 10 MB)\nOUT: A+B @ G1\n"


@pytest.fixture
def preamble(tmp_path: Path) -> Path:
    path = tmp_path / "p.exprog"
    path.write_text(PREAMBLE)
    return path


def test_optimize_writes_a_program_that_simulates_to_its_time(
    preamble: Path, tmp_path: Path, einc: Callable[..., Any]
) -> None:
    target = tmp_path / "fast.exprog"
    arguments = ("exprog", "optimize", preamble, "-m", "dgx-v100", "--ideal", "--iterations", "2")
    document = einc(*arguments, "-o", target, "--json").json()
    assert document["valid"] is True
    assert document["program"] == target.read_text()
    assert document["bound_free_ms"] <= document["bound_ms"] * (1 + 1e-9)
    assert document["bound_ms"] <= document["completion_ms"] <= document["naive_ms"]
    assert isinstance(document["bound_by"], str)
    assert set(document["splits"]) <= {"A", "B"}
    simulated = einc("exprog", "simulate", target, "-m", "dgx-v100", "--ideal", "--json").json()
    assert simulated["completion_ms"] == document["completion_ms"]
    assert einc("exprog", "check", target, "-m", "dgx-v100").code == 0


def test_optimize_prints_the_program_and_notes_the_times(preamble: Path, einc: Callable[..., Any]) -> None:
    arguments = ("exprog", "optimize", preamble, "-m", "dgx-h100", "--iterations", "5", "--seed", "3")
    first, second = einc(*arguments), einc(*arguments)
    assert first.code == 0
    assert first.out.startswith("PARTITIONS: G1 {")
    assert "size 2" not in first.out
    assert "naive body" in first.err
    assert "no program takes less than" in first.err
    assert first.out == second.out


def test_few_pieces_make_a_short_program_and_none_is_slower_than_that_of_the_file(einc: Callable[..., Any]) -> None:
    """Whose memberships are open: those of its body are taken with it."""
    mesh, arguments = MODELS / "exchanges" / "cube-mesh.exprog", ("-m", "dgx-v100", "--iterations", "5")
    text = mesh.read_text()
    taken = einc("exprog", "simulate", mesh, "-m", "dgx-v100", "--json").json()["completion_ms"]
    assert (
        einc("exprog", "simulate", mesh, "-m", "dgx-v100").out.splitlines()[1].startswith("no program takes less than")
    )
    assert "PARTITIONS: G1 {size 4}" in text
    entire = einc("exprog", "optimize", mesh, *arguments, "--pieces", "1", "--json").json()
    assert entire["completion_ms"] <= taken
    assert entire["splits"] == {}
    quarters = einc("exprog", "optimize", mesh, *arguments, "--pieces", "4", "--json").json()
    assert quarters["bound_free_ms"] <= quarters["completion_ms"] < taken
    assert 1 < max(quarters["splits"].values()) <= 4


def test_optimize_with_a_time_limit(preamble: Path, einc: Callable[..., Any]) -> None:
    result = einc("exprog", "optimize", preamble, "-m", "dgx-v100", "--time-limit", "0.001", "--json")
    assert result.code == 0
    assert result.json()["valid"] is True


def test_a_preamble_that_cannot_be_met_ends_with_65(tmp_path: Path, einc: Callable[..., Any]) -> None:
    path = tmp_path / "p.exprog"
    path.write_text("IN: A+B @ 0\nOUT: A @ 1\n")
    result = einc("exprog", "optimize", path, "-m", "dgx-v100")
    assert result.code == 65
    assert "A cannot be gathered at site 1" in result.err


def test_proposals_from_files_and_commands(tmp_path: Path, einc: Callable[..., Any]) -> None:
    path = tmp_path / "p.exprog"
    path.write_text("IN: A @ 0\nOUT: A @ 1\n")
    proposals = tmp_path / "proposals"
    proposals.write_text("no program\n---\nIN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1\n")
    arguments = ("exprog", "optimize", path, "-m", "dgx-v100", "--propose")
    result = einc(*arguments, proposals, "--propose", "command:cat", "--json")
    assert result.code == 0
    told = result.json()["proposals"]
    assert [line.partition(":")[0] for line in told] == ["proposal 1.1", "proposal 1.2", "proposal 2.1"]
    assert all(line in result.err for line in told)
    for wrong in (
        "command:'",
        "command:",
        "llm:",
        "llm:http://localhost/v1",
        "llm:http://[/v1?model=m",
        tmp_path / "no",
    ):
        assert einc(*arguments, wrong).code == 2
    assert einc(*arguments, proposals, "--naive").code == 2


def test_the_naive_body_alone(preamble: Path, tmp_path: Path, einc: Callable[..., Any]) -> None:
    document = einc("exprog", "optimize", preamble, "-m", "dgx-v100", "--naive", "--json").json()
    assert document["completion_ms"] == document["naive_ms"] >= document["bound_ms"] >= document["bound_free_ms"]
    assert document["splits"] == {}
    target = tmp_path / "naive.exprog"
    target.write_text(document["program"])
    simulated = einc("exprog", "simulate", target, "-m", "dgx-v100", "--naive", "--json").json()
    assert simulated["program"] == document["program"]
    assert simulated["completion_ms"] == document["completion_ms"]


def test_check_and_simulate_tell_the_same_bounds(tmp_path: Path, einc: Callable[..., Any]) -> None:
    path = tmp_path / "p.exprog"
    path.write_text("IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1\n")
    for options in ((), ("--ideal",), ("--naive",), ("--ideal", "--naive")):
        checked = einc("exprog", "check", path, "-m", "dgx-v100", "--json", *options).json()
        simulated = einc("exprog", "simulate", path, "-m", "dgx-v100", "--json", *options).json()
        assert checked["bound_ms"] == simulated["bound_ms"] <= simulated["completion_ms"]
        assert checked["program"] == simulated["program"]
