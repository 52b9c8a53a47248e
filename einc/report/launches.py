"""The launches of a plan on GPUs: how many a site has, and which tasks are one launch together."""

from __future__ import annotations

import re

from einc.machines.model import Machine
from einc.predict.cores import RunTasks
from einc.report.told_layers import ToldLayers
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.repetition import weigh_tasks
from einc_runtime.plan.schema import AggregateTask, Bundle, FenceTask, KernelTask, TransferTask
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count

MAX_KINDS_OF_LAUNCHES = 8
"""Kinds of launches that the overview names: those of a layer, and of what is before and after all layers."""


def describe_launches(bundle: Bundle, machine: Machine, run: RunTasks, layers: ToldLayers) -> Document | None:
    """Those of the site that has most; None where sites are no GPUs. `transfers` are those that the site sends, `joint`
    the launches of several tasks, by the names of what these compute, and `peer_sums` what is added out of the memory
    of all GPUs, without transfers, and `gathered` what the same launches write into it."""
    if not machine.joins_launches:
        return None

    def name_copies(number: int, times: int) -> list[str]:
        """What a task computes, and what its copies do."""
        kind, of, name = name_task(bundle, number).rpartition(" of ")
        return [f"{kind}{of}{names.get(name, name)}" for names in layers.renames[:times]]

    read_there = {move for peer_sum in run.peer_sums for move in (*peer_sum.moves, *peer_sum.gathers)}
    tasks = [0] * len(bundle.devices)
    transfers = [0] * len(bundle.devices)
    weights = weigh_tasks(bundle, bundle.repetition)
    for number, task in enumerate(bundle.tasks):
        tasks[task.site] += weights[number] * (not isinstance(task, FenceTask | TransferTask))
        transfers[task.site] += weights[number] * (isinstance(task, TransferTask) and number not in read_there)
    counts = list(tasks)
    joint: list[list[Document]] = [[] for _ in tasks]
    for launch in run.launches:
        site = bundle.tasks[launch.tasks[0]].site
        counts[site] -= sum(weights[number] for number in launch.tasks[1:])
        times = weights[launch.tasks[-1]]  # a launch at the end of a layer may have tasks of the next one
        named = [name_copies(number, times) for number in launch.tasks]
        joint[site] += [{"kind": launch.kind, "ops": list(names)} for names in zip(*named, strict=True)]
    most = max(range(len(counts)), key=counts.__getitem__)
    gathers = {region.buffer: (gather, bundle.tensors[bundle.buffers[region.buffer].tensor].name)
               for peer_sum in run.peer_sums for gather in peer_sum.gathers if bundle.tasks[gather].site == most
               for region in reads_of(bundle.tasks[gather])}  # fmt: skip
    gathered = dict(gathers.values())
    return {
        "site": most,
        "tasks": tasks[most],
        "launches": counts[most],
        "transfers": transfers[most],
        "joint": joint[most],
        "peer_sums": [
            name
            for peer_sum in run.peer_sums
            for number in peer_sum.tasks
            if bundle.tasks[number].site == most
            for name in name_copies(number, weights[number])
        ],
        "gathered": [
            names.get(tensor, tensor)
            for number, tensor in gathered.items()
            for names in layers.renames[: weights[number]]
        ],
        "early": [
            name
            for number, cost in enumerate(run.costs)
            if cost.early is not None and cost.site == most
            for name in name_copies(number, weights[number])
        ],
    }


def name_task(bundle: Bundle, number: int) -> str:
    """What a task that a GPU launches computes: an operator, or what is combined or copied."""
    task = bundle.tasks[number]
    if isinstance(task, KernelTask):
        return bundle.operations[task.operation].name
    (region, *_) = writes_of(task)
    made_by = task.aggregation if isinstance(task, AggregateTask) else "copy"
    return f"{made_by} of {bundle.tensors[bundle.buffers[region.buffer].tensor].name}"


def format_launches(document: Document) -> list[str]:
    """How many launches a site has, and of which operators several are one; equal layers are named once."""
    launches = document["launches"]
    if launches is None or not launches["joint"]:
        return []
    kinds: dict[str, list[str]] = {}
    for row in launches["joint"]:
        text = " + ".join(row["ops"])
        kinds.setdefault(re.sub(r"\d+", "#", text), []).append(text)
    shown = [f"  {names[0]}{f' (x{len(names)})' if len(names) > 1 else ''}" for names in kinds.values()]
    more = [f"  {len(shown) - MAX_KINDS_OF_LAUNCHES} more"] if len(shown) > MAX_KINDS_OF_LAUNCHES else []
    count = format_count(launches["launches"], "launch", "launches")
    ahead = [f"  {len(launches['early'])} more read weights ahead while the site waits"] if launches["early"] else []
    head = f"{count} per site for {launches['tasks']} tasks; each one launch:"
    sums, gathered = format_count(len(launches["peer_sums"]), "sum"), len(launches["gathered"])
    written = f"; {gathered} of their launches write what all gather into it" if gathered else ""
    peers = (
        [f"  {sums} out of the memory of all GPUs, which wait for each other by flags{written}"]
        if launches["peer_sums"]
        else []
    )
    return [head, *shown[:MAX_KINDS_OF_LAUNCHES], *more, *peers, *ahead]
