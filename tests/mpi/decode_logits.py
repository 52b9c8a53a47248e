"""A program for one process or several: writes the logits after a prompt and of the steps that follow, greedily.

mpiexec -n 4 python -m tests.mpi.decode_logits PLANS TARGET.npy SITES STEPS
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from einc.generation.decoder_plans import DecoderSizes, DecoderSource, find_plans
from einc.generation.plan_cache import PlanCache
from einc.options import CompileOptions
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.execution.ranks import mpi
from einc_runtime.execution.ranks.cpu_part import make_cpu_executor
from einc_runtime.generation.generator import open_sessions
from einc_runtime.generation.ranks import dismiss, follow, open_rank_sessions
from einc_runtime.generation.slots import DecoderSlots

FOLDER = Path(__file__).resolve().parents[2] / "models" / "stories"
PROMPT = [41, 7, 305, 19, 2, 88, 130]


def decode(sessions, target, steps):
    slots, rows, tokens = DecoderSlots(sessions[0], sessions[1:]), [], PROMPT
    for _ in range(steps + 1):
        rows.append(slots.append({0: tokens})[0])
        tokens = [int(np.argmax(rows[-1]))]
    np.save(target, np.array(rows))


def main(plans, target, sites, steps):
    source = DecoderSource(
        (FOLDER / "config.json").read_bytes(), "config.json", "stories", list_stored_names(str(FOLDER))
    )
    options = CompileOptions(machine="host", devices=int(sites))
    decoder_plans = find_plans(source, options, PlanCache(Path(plans)), DecoderSizes(1, 256, (32,)), lambda _: None)
    bundles = [plan.bundle for plan in decoder_plans.every]
    if not mpi.is_started_by_mpi():
        decode(open_sessions(bundles, str(FOLDER), "cpu"), target, int(steps))
        return
    links = mpi.connect()
    sessions = open_rank_sessions(
        bundles, str(FOLDER), links, lambda number, bundle, common: make_cpu_executor(bundle, links, common=common)
    )
    if links.rank == 0:
        decode(sessions, target, int(steps))
        dismiss(links)
    else:
        follow(links, sessions)
    links.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
