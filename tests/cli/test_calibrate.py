"""`einc machine calibrate`: what it shows and writes; that nothing is measured here keeps it fast."""

import json
from dataclasses import replace
from pathlib import Path

from einc.calibration import gpus, machine
from einc.calibration.machine import Calibration
from einc.machines import detect
from einc.machines.load import load_machine, parse_machine
from einc.machines.model import KernelRate

MODELS = Path(__file__).resolve().parents[2] / "models"


def test_calibration_writes_a_machine_that_plans_are_made_for(einc, tmp_path, monkeypatch):
    measured = replace(load_machine("host", 3), cores=2, measured="a processor, 2 cores")
    rates = (("contract", KernelRate(20.0, 1e11, 12.5)), ("copy", KernelRate(3.0, gbs=8.0)))
    measured = replace(measured, sites=tuple(replace(site, kernels=rates) for site in measured.sites))
    calls = []

    def calibrate(sites, *, quick, phase):
        calls.append((sites, quick))
        phase("measuring")
        return Calibration(measured, {"contract": [0.9, 1.0, 1.2]}, 3, 6, 2)

    monkeypatch.setattr(machine, "calibrate_host", calibrate)
    file, plan = tmp_path / "mine.json", tmp_path / "plan.bin"
    shown = einc("machine", "calibrate", "--host", "--quick", "--sites", 3, "-o", file)
    assert shown.code == 0
    assert calls == [(3, True)]
    assert "2 of 6 models were not run" in shown.err
    assert "all sites share 2 cores" in shown.out
    assert "contract" in shown.out
    assert "1.00 (0.95 to 1.10)" in shown.out
    assert parse_machine(file.read_text()) == measured
    assert einc("machine", "calibrate", "--host", "--json").out == file.read_text()
    assert einc("machine", "show", file, "--json").out == file.read_text()
    model = MODELS / "digits.ein"
    assert einc("compile", model, "-m", file, "-o", plan).code == 0
    explained = json.loads(einc("explain", plan, "--json").out)
    assert explained["predicted_ms"] > 0
    assert explained["time"]["critical"]["transfer_ms"] == 0


def test_gpus_show_the_forms_that_were_fitted_to_them(einc, tmp_path, monkeypatch):
    calls = []

    def calibrate(machine, chip, *, quick, phase):
        calls.append((len(machine.sites), chip.name, quick))
        return Calibration(replace(machine, measured="2 sites"), {"products.bf16": [0.98, 1.0, 1.02]}, 0, 138, 0)

    monkeypatch.setattr(detect, "find_visible_gpus", lambda known: load_machine("dgx-a100", 2))
    monkeypatch.setattr(detect, "describe_chip", lambda: detect.Chip("a GPU", 108, 1.41, 40.0))
    monkeypatch.setattr(gpus, "calibrate_gpus", calibrate)
    shown = einc("machine", "calibrate", "--quick", "-o", tmp_path / "mine.json")
    assert shown.code == 0
    assert calls == [(2, "a GPU", True)]
    products = next(line for line in shown.out.splitlines() if line.startswith("products.bf16"))
    assert products.split()[1:5] == ["3", "3.077", "3.02e+05", "1.61e+03"]
    assert "1.00 (0.99 to 1.01)" in products
    assert einc("machine", "calibrate", "--sites", 2).code == 2
