"""What plans for detected machines lose on the real ones: every GPU of the catalogue in 2, 4 and 8, in a table.

`python -m tests.machines.detected_plans` prints it. The real machine is one that such GPUs are sold in (the first of
one that has more), else a server with four GPUs a socket. Where detection sees every rate and all that pairs share as
it is, plans are the same and lose nothing. For other machines plans are made, for both, and timed on the real one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from einc.machines import detect
from einc.machines.catalogue import Gpu, load_catalogue
from einc.machines.importers.pcie import find_socket_rate
from einc.machines.load import build_gpu_site, load_machine
from einc.machines.model import Machine, Pair, Resource
from einc.machines.visible.cuda_driver import ask_driver
from einc.machines.visible.nvml import ask_nvml
from einc.machines.visible.topologies import VisibleSources, ask_rocm_smi
from tests.machines.detection_page import time_on
from tests.support.stand_in_driver import make_driver
from tests.support.stand_in_rocm import make_rocm_smi

MODELS = (
    ("chain_a", None), ("chain_b", None), ("chain_c", None), ("chain_d", None), ("chain_e", None),
    ("llama_block", "b1x1k"),
)  # fmt: skip
COUNTS = (2, 4, 8)
MAX_LOSS = 1.05
"""What a plan may take on the real machine, in times of the plan that is made for it."""
_XEON_OF_DGX_1 = ("GenuineIntel", 79)


def find_real_machine(gpu: Gpu, count: int) -> tuple[str, Machine] | None:
    """Its name, and the machine; None for cards without peers of which no such server is known."""
    presets = [(name, load_machine(name)) for name in gpu.systems]
    fitting = sorted((len(machine.sites), name) for name, machine in presets if len(machine.sites) >= count)
    sites = (build_gpu_site(gpu),) * count
    if fitting:
        name = fitting[0][1]
        return name, dataclasses.replace(load_machine(name).restrict(range(count)), sites=sites)
    if not gpu.pcie_peers:
        return None
    server = load_machine("l40s-pcie8" if count > 4 else "l40s-pcie4")
    slot = max(lane.gbs for lane in server.resources)
    resources = []
    for lane in server.resources:  # what a switch has is no more than a slot has
        gbs = gpu.pcie_gbs if lane.gbs == slot else lane.gbs
        gbs = min(gbs, gpu.pcie_gbs) if lane.name.startswith("switch ") else gbs
        resources.append(Resource(lane.name, gbs, lane.pairs))
    restricted = dataclasses.replace(server, resources=tuple(resources)).restrict(range(count))
    return "PCIe", dataclasses.replace(restricted, sites=sites)


def detect_real_machine(gpu: Gpu, name: str, real: Machine) -> Machine:
    """What detection makes of the machine, as stand-ins for its drivers report it. Raises UsageError if it refuses."""
    count = len(real.sites)
    if gpu.maker == "amd":
        return detect.describe_amd(ask_rocm_smi(make_rocm_smi(gpu, real, count)) or "").machine
    cuda, nvml = make_driver(gpu, real, count)
    driver = ask_driver(cuda)
    assert driver is not None
    links = ask_nvml([visible.bus_id for visible in driver.gpus], nvml)
    socket_gbs = find_socket_rate(*_XEON_OF_DGX_1) if name == "dgx-1" else None
    return detect.describe_machine(driver, VisibleSources(links, socket_gbs=socket_gbs)).machine


def list_cases() -> Iterator[tuple[Gpu, str, Machine]]:
    for gpu in load_catalogue().values():
        for count in COUNTS:
            real = find_real_machine(gpu, count)
            if real is not None:
                yield gpu, *real


def sees_as_it_is(real: Machine, detected: Machine) -> bool:
    """Whether plans for both are the same: sites, rates, and what pairs share."""
    return real.sites == detected.sites and _find_rates(real) == _find_rates(detected)


def _find_rates(machine: Machine) -> dict[tuple[Pair, ...], float]:
    """What pairs share, and its rate: of resources that the same pairs cross, the slowest counts."""
    rates: dict[tuple[Pair, ...], float] = {}
    for lane in machine.resources:
        pairs = tuple(sorted(lane.pairs))
        rates[pairs] = min(lane.gbs, rates.get(pairs, lane.gbs))
    return rates


def compute_losses(real: Machine, detected: Machine) -> list[float]:
    """For every model what its plan for the detected machine takes on the real one, over that of the plan for it."""
    return [
        time_on(real, detected, model, preset) / time_on(real, real, model, preset) for model, preset in MODELS
    ]  # fmt: skip


def main() -> int:
    titles = [model if preset is None else f"{model} {preset}" for model, preset in MODELS]
    print(f"| GPU | sites | real machine | seen as it is | {' | '.join(titles)} |")
    print(f"| --- | ---: | --- | --- | {' | '.join(['---:'] * len(titles))} |")
    worst = 1.0
    for gpu, name, real in list_cases():
        detected = detect_real_machine(gpu, name, real)
        same = sees_as_it_is(real, detected)
        losses = [1.0] * len(MODELS) if same else compute_losses(real, detected)
        worst = max(worst, *losses)
        cells = [f"`{gpu.name}`", str(len(real.sites)), name, "yes" if same else "no"]
        print(f"| {' | '.join([*cells, *(f'{loss:.2f}' for loss in losses)])} |", flush=True)
    print(f"\nThe most that a plan loses: {worst:.3f}")
    return int(worst > MAX_LOSS)


if __name__ == "__main__":
    raise SystemExit(main())
