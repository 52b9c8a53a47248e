"""A stand-in for `rocm-smi`: what it prints of GPUs of the catalogue that are joined like a machine of einc."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from einc.machines.catalogue import Gpu
from einc.machines.model import Machine
from einc.machines.visible.topologies import list_direct
from tests.support.stand_in_driver import crosses_sockets

CARD_SERIES = {
    "mi50": "Vega 20 [Radeon Pro VII/Radeon Instinct MI50 32GB]",
    "mi60": "0x66a0",
    "mi100": "Arcturus GL-XL [AMD Instinct MI100]",
    "mi210": "AMD Instinct MI210",
    "mi250": "AMD INSTINCT MI200 (MCM) OAM AC MBA",
    "mi250x": "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2",
    "mi300a": "AMD Instinct MI300A",
    "mi300x": "AMD Instinct MI300X OAM",
    "mi325x": "AMD Instinct MI325X",
    "mi355x": "AMD Instinct MI355X",
}
"""What the tool calls the GPUs of the catalogue, as users' reports show: a PCI id where it has no name."""
_BAR = "=" * 20


def make_rocm_smi(
    gpu: Gpu, machine: Machine | None, count: int, *, bandwidths: bool = True, memory_mib: int | None = None
) -> Callable[[Sequence[str]], str | None]:
    """The tool on a computer with the first `count` GPUs of a machine; without one, GPUs over PCIe in one socket.

    Without `bandwidths` it says `0-0` of all pairs, as some of its versions do.
    """
    links = {} if machine is None else {
        pair: links for pair, links in list_direct(machine).items() if max(pair) < count
    }  # fmt: skip
    pairs = [[(a, b) for b in range(count)] for a in range(count)]
    joined = bool(links)

    def table(title: str, cell: Callable[[tuple[int, int]], str]) -> str:
        rows = ["       " + "".join(f"GPU{k:<12}" for k in range(count))]
        rows += [f"GPU{a:<6}" + "".join(f"{cell(pair):<15}" for pair in row) for a, row in enumerate(pairs)]
        return "\n".join((f"{_BAR} {title} {_BAR}", *rows, ""))

    def kind(pair: tuple[int, int]) -> str:
        return "0" if pair[0] == pair[1] else "XGMI" if joined else "PCIE"

    def weight(pair: tuple[int, int]) -> str:
        return "0" if pair[0] == pair[1] else "15" if pair in links else "30" if joined else "40"

    def bandwidth(pair: tuple[int, int]) -> str:
        if pair[0] == pair[1]:
            return "N/A"
        return f"50000-{50000 * links[pair]}" if bandwidths and pair in links else "0-0"

    def say(fact: str) -> str:
        return "\n".join(f"GPU[{k}]\t\t: {fact}" for k in range(count))

    upper = {k for k in range(1, count) if machine is not None and crosses_sockets(machine, (0, k))}
    answers = {
        "--showtopo": "\n".join(
            (
                table("Weight between two GPUs", weight),
                table("Link Type between two GPUs", kind),
                *(f"GPU[{k}]\t\t: (Topology) Numa Node: {int(k in upper)}" for k in range(count)),
            )
        ),
        "--shownodesbw": table("Bandwidth", bandwidth) + "Format: min-max; Units: mps\n",
        "--showproductname": say("Card Series: " + CARD_SERIES[gpu.name]) + "\n" + say("Card Model: " + gpu.pci[0]),
        "--showmeminfo": say(f"VRAM Total Memory (B): {(memory_mib or gpu.memory_mib) << 20}"),
    }
    return lambda command: answers.get(command[1])
