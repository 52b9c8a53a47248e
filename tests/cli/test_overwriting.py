"""No command writes over what it reads, however the two are spelled, and no two outputs go into one file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODEL = "model m\ndim n = 6\ninput x : f32[n]\nweight w : f32[n]\ny = x * w\nz = x + w\noutput y, z\n"


@pytest.fixture
def folder(tmp_path: Path, einc: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of every kind that a command reads, and a plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.ein").write_text(MODEL)
    (tmp_path / "p.exprog").write_text("IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1\n")
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n")
    assert einc("machine", "show", "dgx-v100", "--json").code == 0
    (tmp_path / "mine.json").write_text(json.dumps(einc("machine", "show", "dgx-v100", "--json").json()))
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    np.savez(tmp_path / "w.npz", w=np.ones(6, np.float32))
    os.symlink(tmp_path / "m.ein", tmp_path / "link.ein")
    os.link(tmp_path / "x.npy", tmp_path / "hard.npy")
    assert einc("compile", "m.ein", "-m", "dgx-v100", "--devices", 3, "-o", "m.bin").code == 0
    return tmp_path


RUN = ("run", "m.bin", "--inputs", "x=x.npy", "--weights", "w.npz")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("compile", "m.ein", "-m", "host", "-o", "m.ein"), "m.ein"),
        (("compile", "m.ein", "-m", "host", "-o", "link.ein"), "link.ein"),
        (("compile", "link.ein", "-m", "host", "-o", "./m.ein"), "./m.ein"),
        (("compile", "m.ein", "-m", "mine.json", "-o", "mine.json"), "mine.json"),
        (("compile", "m.ein", "-m", "host", "--compare", "mine.json:2", "-o", "mine.json"), "mine.json"),
        (("explain", "m.bin", "--trace", "m.bin"), "m.bin"),
        (("explain", "m.bin", "--against", "m.bin", "--trace", "m.bin"), "m.bin"),
        (("explain", "m.ein", "-m", "mine.json", "--trace", "mine.json"), "mine.json"),
        ((*RUN, "-o", "y=x.npy"), "x.npy"),
        ((*RUN, "-o", "y=hard.npy"), "hard.npy"),
        ((*RUN, "-o", "w.npz"), "w.npz"),
        ((*RUN, "--trace", "m.bin"), "m.bin"),
        ((*RUN, "-o", "y=x.npy", "--expect", "y=x.npy"), "x.npy"),
        (("exprog", "optimize", "p.exprog", "-m", "dgx-v100", "-o", "p.exprog"), "p.exprog"),
        (("exprog", "simulate", "p.exprog", "-m", "mine.json", "-o", "mine.json"), "mine.json"),
        (("machine", "import", "topo.txt", "-o", "topo.txt"), "topo.txt"),
    ],
)
def test_what_is_read_is_not_written_over(
    folder: Path, einc: Callable[..., Any], arguments: tuple[str, ...], named: str
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = einc(*arguments)
    assert (result.code, result.err) == (2, f"einc: {named}: the command reads this file, and would write over it\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "named", "kind"),
    [
        (("explain", "m.bin", "--html", "x.npy"), "x.npy", "a page"),
        (("compile", "m.ein", "-m", "host", "-o", "new.bin", "--html", "w.npz"), "w.npz", "a page"),
        (("compile", "m.ein", "-m", "host", "-o", "mine.json"), "mine.json", "a plan"),
        (("compile", "m.ein", "-m", "host", "-o", "p.exprog"), "p.exprog", "a plan"),
        (("exprog", "simulate", "p.exprog", "-m", "dgx-v100", "--html", "m.ein"), "m.ein", "a page"),
        (("machine", "show", "dgx-v100", "--html", "hard.npy"), "hard.npy", "a page"),
        (("advise", "m.ein", "-m", "dgx-v100", "--html", "topo.txt"), "topo.txt", "a page"),
        (("reshard", "m.bin", "m.bin", "-o", "x.npy"), "x.npy", "a plan"),
    ],
)
def test_data_is_not_lost_where_a_page_or_a_plan_is_written(
    folder: Path, einc: Callable[..., Any], arguments: tuple[str, ...], named: str, kind: str
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = einc(*arguments)
    assert result.code == 2
    assert result.err.endswith(
        f"einc: {named}: there is a file that is not {kind}, and would be lost\n"
        "    hint: name another file, or remove this one\n"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_pages_and_plans_are_written_again(folder: Path, einc: Callable[..., Any]) -> None:
    (folder / "page.html").touch()
    for _ in range(2):
        assert einc("compile", "m.ein", "-m", "host", "-o", "m.bin", "--html", "page.html").code == 0
        assert einc("machine", "show", "dgx-v100", "--html", "page.html").code == 0


def test_a_folder_of_a_model_keeps_its_files(folder: Path, einc: Callable[..., Any]) -> None:
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text("{}")
    assert "would write over it" in einc("import", "hf", "hf", "-o", "hf/config.json").err
    assert einc("import", "hf", "hf", "-o", "hf/model.ein").code == 65  # an empty configuration, but no conflict


@pytest.mark.parametrize("outputs", [("-o", "y=a.npy", "-o", "z=./a.npy"), ("-o", "a.npz", "--trace", "a.npz")])
def test_two_outputs_do_not_share_a_file(folder: Path, einc: Callable[..., Any], outputs: tuple[str, ...]) -> None:
    result = einc(*RUN, *outputs)
    assert result.code == 2
    assert "two outputs would go into this file" in result.err
    assert not (folder / "a.npy").exists()


def test_other_places_are_written_again_and_again(folder: Path, einc: Callable[..., Any]) -> None:
    for _ in range(2):
        assert einc(*RUN, "-o", "y=y.npy", "-o", "all.npz", "--trace", os.devnull).code == 0
    assert np.array_equal(np.load(folder / "y.npy"), np.arange(6))
