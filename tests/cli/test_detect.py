"""`einc machine detect` and `compile` without `-m`: where facts are from, and one line of what is assumed."""

from pathlib import Path

import pytest

from einc.machines import detect
from einc.machines.catalogue import load_catalogue
from einc.machines.visible.cuda_driver import ask_driver
from einc.machines.visible.topologies import VisibleSources
from tests.support.stand_in_driver import make_driver

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.fixture
def geforce(monkeypatch):
    cuda, _ = make_driver(load_catalogue()["rtx-4090"], None, 2)
    monkeypatch.setattr(detect, "ask_driver", lambda: ask_driver(cuda))
    monkeypatch.setattr(detect, "ask_everything", lambda *_: VisibleSources())


def test_what_is_said_of_the_visible_gpus(geforce, einc, tmp_path):
    shown = einc("machine", "detect")
    assert "from GPUs, memory and peers: CUDA's driver (NVIDIA GeForce RTX 4090)" in shown.err
    assert shown.err.count("assumed") == 1
    assert einc("machine", "detect", "--json").out.startswith("{")
    compiled = einc("compile", MODELS / "digits.ein", "-o", tmp_path / "plan.bin")
    assert compiled.code == 0
    assert compiled.err.count("warning: assumed of rtx-4090-x2") == 1
    assert "host memory" not in einc("compile", MODELS / "digits.ein", "-m", "host", "-o", tmp_path / "plan.bin").err
