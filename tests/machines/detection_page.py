"""Writes docs/detection.md: ten machines as two rules detect them, and plans for what was detected on the real ones.

`python -m tests.machines.detection_page` takes some minutes. The stand-in drivers of the tests report each machine.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from einc.compiler import compile_model
from einc.machines.catalogue import load_catalogue
from einc.machines.detect import describe_machine
from einc.machines.importers.pcie import find_socket_rate
from einc.machines.load import format_machine, load_machine
from einc.machines.model import Machine, Pair
from einc.machines.rules import build_switch
from einc.machines.visible.cuda_driver import ask_driver
from einc.machines.visible.nvml import ask_nvml
from einc.machines.visible.topologies import VisibleSources
from einc.options import CompileOptions
from einc.plan_reading.timing import time_plan
from tests.support.stand_in_driver import CUDA_NAMES, make_driver

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "detection.md"
MACHINES = (
    ("dgx-1", "v100"), ("hgx-a100-4", "a100-sxm-40gb"), ("dgx-a100", "a100-sxm-40gb"), ("hgx-h100-4", "h100-sxm"),
    ("dgx-h100", "h100-sxm"), ("h100-nvl-4", "h100-nvl"), ("gh200x4", "gh200"), ("hgx-b200", "b200-sxm"),
    ("l40s-pcie4", "l40s"), ("geforce-4090x4", "rtx-4090"),
)  # fmt: skip
"""Presets, and the GPU of each."""
MODELS = (("chain C", "chain_c", None),)
_BY_NAME = (("GB200", 72, 640.0), ("B200", 72, 640.0), ("H200", 8, 320.0), ("H100", 8, 320.0), ("A100", 8, 87.7))
"""AutoParallel's rule (meta-pytorch/autoparallel at a54c252): a part of the driver's name, GPUs of a node, GB/s."""
_DEFAULT_GBS = 87.7
"""What PyTorch's cost model takes between GPUs of a host where AutoParallel does not know them."""
INTRODUCTION = """# What detection finds

`python -m tests.machines.detection_page` writes this page. Ten machines are reported by stand-ins for their drivers,
and detected by two rules:

- **by name**, as AutoParallel does: a GPU whose name has A100, H100, H200, B200 or GB200 in it, in a multiple of the
  GPUs of their usual server, gets one rate of that server (87.7, 320 or 640 GB/s); everything else gets PyTorch's
  default of 87.7 GB/s between any two GPUs, with a warning.
- **ours**: CUDA's driver, NVML and the [catalogue](gpus.md), as in [machines.md](machines.md#detection). Without NVML
  and `nvidia-smi` (the last column), the driver alone says which pairs NVLink joins.

GB/s are those of the slowest and of the fastest pair. The numbers below the models say how much longer the plan that is
chosen for the detected machine takes on the real one, by prediction, than the plan that is chosen for that.

`python -m tests.machines.detected_plans` does so for every GPU of the catalogue, those of AMD by `rocm-smi`, in 2, 4
and 8 on servers as they are sold in, or with four cards a socket: 127 of these 129 machines are detected exactly as
they are, so that plans for them lose nothing. The two others are DGX-1 with eight GPUs, where nobody says which pairs
share a switch of PCIe beside their NVLinks; the command plans for both, and ends with 1 if a plan loses more than 5%.

"""


def detect_by_name(name: str, machine: Machine) -> tuple[Machine, bool]:
    """The machine that the rule of names sees, and whether it warns: one rate between all GPUs."""
    match = next((row for row in _BY_NAME if row[0] in name), None)
    known = match is not None and len(machine.sites) % match[1] == 0
    gbs = match[2] if match is not None and known else _DEFAULT_GBS
    resources = tuple(build_switch("link", dict.fromkeys(range(len(machine.sites)), gbs)))
    return dataclasses.replace(machine, resources=resources), not known


def detect_ours(preset: str, gpu: str, *, with_nvml: bool) -> Machine:
    """The machine that detection finds on a preset's stand-ins."""
    count = len(load_machine(preset).sites)
    cuda, nvml = make_driver(load_catalogue()[gpu], load_machine(preset), count)
    driver = ask_driver(cuda)
    assert driver is not None
    links = ask_nvml([visible.bus_id for visible in driver.gpus], nvml) if with_nvml else None
    model = (
        79 if preset == "dgx-1" else None
    )  # its Xeon E5 of 2016; the processors of the others are AMD's or do not matter
    socket_gbs = None if model is None else find_socket_rate("GenuineIntel", model)
    return describe_machine(driver, VisibleSources(links, socket_gbs=socket_gbs)).machine


def list_detections() -> list[tuple[str, Machine, dict[str, Machine], bool]]:
    """For every machine its name, itself, and what the rules see; and whether the rule of names warns."""
    rows = []
    for preset, gpu in MACHINES:
        machine = load_machine(preset)
        named, warns = detect_by_name(CUDA_NAMES[gpu], machine)
        ours = {"all": detect_ours(preset, gpu, with_nvml=True), "driver": detect_ours(preset, gpu, with_nvml=False)}
        rows.append((preset, machine, {"name": named, **ours}, warns))
    return rows


def format_rates(machine: Machine) -> str:
    rates = sorted({min(machine.resources[k].gbs for k in route) for route in machine.routes.values()})
    return f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"


def list_shares(machine: Machine) -> list[tuple[float, tuple[Pair, ...]]]:
    """What pairs share, names aside: two machines of the same GPUs with the same have the same plans."""
    return sorted((resource.gbs, tuple(sorted(resource.pairs))) for resource in machine.resources)


def time_on(real: Machine, planned_for: Machine, model: str, preset: str | None) -> float:
    """Milliseconds on a machine of the plan that is chosen for another one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        path.write_text(format_machine(planned_for), encoding="utf-8")
        text = (ROOT / "models" / f"{model}.ein").read_text(encoding="utf-8")
        bundle = compile_model(
            text, f"{model}.ein", CompileOptions(machine=str(path), preset=preset), print_nothing
        ).bundle
    predicted = time_plan(bundle, real).predicted_ms
    assert predicted is not None
    return predicted


def print_nothing(_: str) -> None:
    return


def write_page() -> str:
    columns = [title for title, _, _ in MODELS]
    lines = [
        f"| machine | real | by name | {' | '.join(columns)} | ours | {' | '.join(columns)} | driver alone |",
        f"| --- | --- | --- | {'---: | ' * len(MODELS)}--- | {'---: | ' * len(MODELS)}--- |",
    ]
    for preset, machine, seen, warns in list_detections():
        ratios: dict[str, list[str]] = {"name": [], "all": []}
        for _, model, choice in MODELS:
            best = time_on(machine, machine, model, choice)
            for rule in ratios:
                same = list_shares(seen[rule]) == list_shares(machine)
                ratio = 1.0 if same else time_on(machine, seen[rule], model, choice) / best
                ratios[rule].append(f"{ratio:.2f}")
        print(preset, ratios, flush=True)
        named = f"{format_rates(seen['name'])}{' (warns)' if warns else ''}"
        ours = [format_rates(seen["all"]), *ratios["all"], format_rates(seen["driver"])]
        cells = [f"`{preset}`", format_rates(machine), named, *ratios["name"], *ours]
        lines.append(f"| {' | '.join(cells)} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
