"""`einc exprog` and `einc machine`: the paper's programs as files, and programs and machine files that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.machines import load, schema

SWAP = """\
GPUS: 0, 1, 2, 3
PARTITIONS: G1 {size 1} G2 {size 1}
IN: A @ 0; B @ 1
OUT: A+B @ G1; A+B @ G2
A @ 0 -> 1; B @ 1 -> 0
A+B @ 0
A+B @ 1
"""


@pytest.fixture
def swap(tmp_path: Path) -> Path:
    path = tmp_path / "swap.ex"
    path.write_text(SWAP)
    return path


def test_the_host_has_the_sites_that_a_program_names(
    tmp_path: Path, einc: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    load.load_machine("host", 1)  # before the limit is changed, which the first file to be decoded settles
    monkeypatch.setattr(load, "count_host_cores", lambda: 2)
    monkeypatch.setattr(schema, "MAX_SITES", 16)
    path = tmp_path / "far.ex"
    path.write_text("IN: A @ 13\nOUT: A @ 12\nA @ 13 -> 12\n")
    for command in ("check", "simulate", "optimize"):
        assert einc("exprog", command, path, "-m", "host").code == 0
    path.write_text("IN: A @ 20\nOUT: A @ 12\nA @ 20 -> 12\n")
    assert "there is no site 20 on host" in einc("exprog", "check", path, "-m", "host").err


def test_simulate_prints_the_papers_time(swap: Path, einc: Callable[..., Any]) -> None:
    assert einc("exprog", "simulate", swap, "-m", "dgx-h100", "--ideal").out.startswith(
        "3.118 ms, not measured, for atoms of 1 GB\nno program takes less than 2.222 ms: cut {0}"
    )
    document = einc("exprog", "simulate", swap, "-m", "dgx-h100", "--ideal", "--json").json()
    assert list(document) == [
        "valid",
        "completion_ms",
        "completion_range_ms",
        "rates",
        "bound_ms",
        "bound_by",
        "splits",
        "program",
    ]
    assert document["valid"] is True
    assert document["completion_ms"] == pytest.approx(3.118, abs=5e-4)
    assert document["bound_ms"] == pytest.approx(1000 / 450)
    assert document["bound_by"] == "cut {0}: 1 GB must enter through 450 GB/s"
    assert document["splits"] == {}
    checked = einc("exprog", "check", swap, "-m", "dgx-h100", "--ideal", "--json").json()
    assert (checked["bound_ms"], checked["bound_by"]) == (document["bound_ms"], document["bound_by"])
    assert einc("exprog", "check", swap, "--json").json()["bound_ms"] is None
    assert "G1 {0} G2 {1}" in document["program"]
    slower = einc("exprog", "simulate", swap, "-m", "dgx-h100", "--json").json()
    assert slower["completion_ms"] > document["completion_ms"]


def test_the_written_program_is_simulated_alike(swap: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    written = tmp_path / "explicit.ex"
    first = einc("exprog", "simulate", swap, "-m", "dgx-h100", "-o", written)
    assert einc("exprog", "simulate", written, "-m", "dgx-h100").out == first.out
    printed = einc("exprog", "simulate", swap, "-m", "dgx-h100", "-o", "-")
    assert printed.out == written.read_text()


def test_naive_replaces_the_body(swap: Path, einc: Callable[..., Any]) -> None:
    swap.write_text("\n".join(SWAP.splitlines()[:4]) + "\n")
    assert einc("exprog", "check", swap, "-m", "dgx-h100").code == 1
    assert einc("exprog", "simulate", swap, "-m", "dgx-h100").code == 65
    assert einc("exprog", "check", swap, "-m", "dgx-h100", "--naive").code == 0
    assert einc("exprog", "simulate", swap, "-m", "dgx-h100", "--naive", "--ideal").out.startswith(
        "3.118 ms, not measured, for atoms of 1 GB\nno program takes less than 2.222 ms: cut {0}"
    )
    assert einc("exprog", "check", swap, "--naive").code == 2


def test_check_names_every_fault_at_its_place(swap: Path, einc: Callable[..., Any]) -> None:
    assert einc("exprog", "check", swap).out == f"{swap}: valid\n"
    swap.write_text(SWAP.replace("A+B @ 0\nA+B @ 1\n", ""))
    result = einc("exprog", "check", swap, "-m", "dgx-h100")
    assert result.code == 1
    assert result.out == ""
    assert result.err.count(f"{swap}:4:") == 2
    assert "^" in result.err
    document = einc("exprog", "check", swap, "-m", "dgx-h100", "--json").json()
    assert document["valid"] is False
    assert len(document["faults"]) == 2
    assert document["error"]["code"] == "check"
    result = einc("exprog", "simulate", swap, "-m", "dgx-h100")
    assert result.code == 65
    assert "1 more fault" in result.err


@pytest.mark.parametrize(
    "text", ["", "IN", "GPUS: 0\nA @@ 0", SWAP.replace("G1 {size 1}", "G1 {size 9}"), "\0", "(" * 100_000]
)
def test_programs_that_do_not_parse_end_with_65(text: str, einc: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "p.ex"
    path.write_text(text)
    result = einc("exprog", "simulate", path, "-m", "dgx-a100", "--json")
    if text:  # nothing at all moves nothing
        assert result.code == 65
        assert result.json()["error"]["code"] == "exchange_program"


def test_machines_are_listed_and_shown(einc: Callable[..., Any], swap: Path, tmp_path: Path) -> None:
    names = [machine["name"] for machine in einc("machine", "list", "--json").json()["machines"]]
    assert set(names) >= {"dgx-a100", "dgx-h100", "dgx-v100", "dgx-v100-paper", "gb200-nvl72", "host"}
    listed = einc("machine", "list").out
    assert all(name in listed for name in names)
    for name in {*names[::6], "dgx-h100"}:
        assert einc("machine", "show", name).out.startswith(name)
        file = tmp_path / f"{name}.json"
        file.write_text(einc("machine", "show", name, "--json").out)
        assert json.loads(file.read_text())["name"] == name
        if name == "dgx-h100":
            assert einc("exprog", "simulate", swap, "-m", file, "--ideal").out.startswith(
                "3.118 ms, not measured, for atoms of 1 GB\nno program takes less than 2.222 ms: cut {0}"
            )
    assert json.loads(einc("machine", "detect", "--json").out)["sites"]


def test_unknown_and_broken_machines(einc: Callable[..., Any], swap: Path, tmp_path: Path) -> None:
    result = einc("machine", "show", "dgx-a10")
    assert result.code == 2
    assert "dgx-a100" in result.err
    assert einc("machine", "show", "./missing.json").code == 2
    broken = tmp_path / "m.json"
    for text in ("", "{", "[]", '{"name": 1}', "\0", "[" * 100_000, '{"name": "m", "sites": [], "resources": []}'):
        broken.write_text(text)
        for command in (("machine", "show", broken), ("exprog", "simulate", swap, "-m", broken)):
            result = einc(*command, "--json")
            assert result.code == 65
            assert result.json()["error"]["code"] == "machine"


TABLE = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      NV12    NV12    NV12    0-31
GPU1    NV12     X      NV12    NV12    0-31
GPU2    NV12    NV12     X      NV12    32-63
GPU3    NV12    NV12    NV12     X      32-63
"""


def test_a_topology_is_imported_shown_and_used(einc: Callable[..., Any], swap: Path, tmp_path: Path) -> None:
    table, file = tmp_path / "topo.txt", tmp_path / "mine.json"
    table.write_text(TABLE)
    result = einc("machine", "import", table, "-o", file, "--name", "mine")
    assert result.code == 0
    assert result.out == einc("machine", "show", file).out
    assert result.out.startswith("mine: 4 sites of 38.39 GiB")
    assert result.err.count("assumed: ") == 6
    assert "--gpu" in result.err
    assert einc("machine", "import", table, "-o", "-", "--name", "mine").out == file.read_text()
    assert einc("machine", "import", table, "--json", "--name", "mine").out == file.read_text()
    assert "nothing was written" in einc("machine", "import", table).err
    assert einc("exprog", "simulate", swap, "-m", file, "--ideal").code == 0


def test_broken_topologies(einc: Callable[..., Any], tmp_path: Path) -> None:
    table, file = tmp_path / "topo.txt", tmp_path / "mine.json"
    for text in (TABLE.replace("NV12", "NV4", 1), TABLE[:150], "", "<!DOCTYPE a><a/>"):
        table.write_text(text)
        result = einc("machine", "import", table, "-o", file, "--json")
        assert result.code == 65
        assert result.json()["error"]["code"] == "machine"
    table.write_bytes(b"\xff\xfeG\0")
    assert einc("machine", "import", table, "--json").json()["error"]["code"] == "machine"
    assert not file.exists()
    table.write_text(TABLE)
    for option, value in (("--nvlink-gbs", "nan"), ("--pcie-gbs", "inf"), ("--hbm-gbs", "0"), ("--gpu", "tpu")):
        assert einc("machine", "import", table, option, value).code == 2
    assert einc("machine", "import", tmp_path / "none").code == 2
    assert einc("machine", "import", tmp_path).code == 74
