"""Plays NCCL's collectives in the simulator of exchange programs, on machines with the parameters of its protocols.

For each protocol there is a machine whose ports have the protocol's rate and whose transfers begin after the time of a
hop. Sums cost nothing, as NCCL adds while it receives. The start of a collective, and the copy of a chunk within a GPU,
are added to what the simulator says: it has no such terms. The least time counts. Switches that add (NVLS) are not
played but timed by their form: an exchange program has no such step.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations

from einc.exchange.language.resolve import read_program
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import parse_machine
from einc.machines.model import Machine
from tests.truth.forms import ALL_REDUCE, ALL_TO_ALL, SWITCH_GPUS, US_PER_BYTE, Collectives, PeerKernel
from tests.truth.programs import write_all_to_all, write_collective, write_one_shot, write_two_shot

FREE_GBS = 1e9
"""Memory that is so fast that sums take no time beside the transfers."""


def replay(model: Collectives, collective: str, size: int, gpus: int) -> float:
    """The least simulated time of what NCCL may choose, in microseconds."""
    chunk = size / gpus
    if collective == ALL_TO_ALL:
        sends, share = model.sends, model.send_shares.get(gpus, 1.0)
        text = write_all_to_all(gpus, size)
        times = [
            sends.ll_start_us + play_us(text, make_pairs(gpus, sends.ll_gbs * share)),
            sends.few_start_us + play_us(text, make_pairs(gpus, sends.few_gbs * share)),
            sends.start_us + play_us(text, make_switch(gpus, sends.gbs * share)) + chunk / sends.copy_gbs * US_PER_BYTE,
        ]
        return min(times) + (gpus - 2) * sends.peer_us
    text, share = write_collective(collective, gpus, size), model.shares.get(gpus, 1.0)
    times = [
        play_us(text, make_switch(gpus, protocol.gbs * share, protocol.hop_us)) + protocol.extra_us(chunk)
        for protocol in model.protocols.values()
    ]
    if model.switch and collective == ALL_REDUCE and gpus >= SWITCH_GPUS:
        times.append(model.switch.all_reduce_us(size, gpus))
    return min(times)


def replay_kernel(kernel: PeerKernel, size: int, gpus: int) -> float:
    """One-shot or two-shot, as transfers and sums that cost nothing; the waits of a kernel are added."""
    share = kernel.shares.get(gpus, 1.0)
    one_shot = play_us(write_one_shot(gpus, size), make_switch(gpus, kernel.one_shot_gbs * share))
    two_shot = play_us(write_two_shot(gpus, size), make_switch(gpus, kernel.two_shot_gbs * share))
    return kernel.begin_us(gpus) + min(one_shot, kernel.barrier_us + two_shot)


def play_us(text: str, machine: Machine) -> float:
    """Microseconds of a program."""
    return simulate(read_program(text, "played.exprog", machine), machine).completion_ms * 1e3


@cache
def make_switch(gpus: int, gbs: float, transfer_us: float = 0.0) -> Machine:
    """GPUs on a switch, whose ports have this rate each way."""
    return _make(gpus, [{"kind": "switch", "name": "port", "gbs": gbs}], transfer_us)


@cache
def make_pairs(gpus: int, gbs: float) -> Machine:
    """GPUs with links of this rate from each to each."""
    pairs = [list(pair) for pair in combinations(range(gpus), 2)]
    return _make(gpus, [{"kind": "links", "name": "link", "gbs": gbs, "between": pairs}], 0.0)


def _make(gpus: int, rules: list[dict[str, object]], transfer_us: float) -> Machine:
    sites = {"count": gpus, "hbm_gbs": FREE_GBS, "memory_bytes": 1 << 40}
    latency = {"transfer": transfer_us, "kernel": 0}
    return parse_machine(json.dumps({"name": "played", "sites": sites, "rules": rules, "latency_us": latency}))
