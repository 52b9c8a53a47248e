"""The models in PyTorch on several GPUs, as one writes it by hand: weights replicated, activations sharded.

A block is cut by batch (every rank has some of the sequences, and nothing is exchanged) or by sequence (every rank has
a part of each sequence, and gathers all keys and values). A chain is cut by rows: every rank has a part of the rows of
every product, and gathers the right operand if that is a product itself. Processes talk by NCCL, or without GPUs by
gloo, to rehearse it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from einc_runtime.plan.schema import Bundle
from tests.gpu.torch_models import (
    Arrays,
    Attend,
    Model,
    Weights,
    attend_to_own,
    block_of,
    given,
    model_of,
    sequence_lengths,
    tensors,
)

BATCH, SEQUENCE, ROWS = "batch", "sequence", "rows"


def ways_of(bundle: Bundle, ranks: int) -> tuple[str, ...]:
    """How a model can be cut over so many ranks, if its sizes allow it."""
    if bundle.model.startswith("chain_"):
        rows = {bundle.tensors[operation.outputs[0]].shape[0] for operation in bundle.operations}
        return (ROWS,) if all(extent % ranks == 0 for extent in rows) else ()
    lengths = sequence_lengths(bundle)
    found = (BATCH,) if len(lengths) % ranks == 0 else ()
    return (*found, SEQUENCE) if all(length % ranks == 0 for length in lengths) else found


def run_ranks(
    bundle: Bundle, draw: Callable[[Bundle], Arrays], how: str, ranks: int, device: str, rounds: tuple[int, int]
) -> tuple[list[float], np.ndarray]:
    """Milliseconds of each timed round (of the slowest rank), and the output; `rounds` are to warm up and to time.

    `draw` gives all arrays; every rank calls it and keeps its part. `device` is cuda or cpu.
    """
    if how not in ways_of(bundle, ranks):
        raise ValueError(f"{bundle.model} cannot be cut by {how} over {ranks} ranks")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, bundle, draw, how, device, rounds, folder)
        torch.multiprocessing.spawn(_run_rank, arguments, nprocs=ranks)
        times = np.load(Path(folder) / "times.npy")
        parts = [np.load(Path(folder) / f"{rank}.npy") for rank in range(ranks)]
        places = [np.load(Path(folder) / f"{rank}-rows.npy") for rank in range(ranks)]
    result = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for part, place in zip(parts, places, strict=True):
        result[place] = part
    return times.tolist(), result


def _run_rank(
    rank: int,
    ranks: int,
    bundle: Bundle,
    draw: Callable[[Bundle], Arrays],
    how: str,
    device: str,
    rounds: tuple[int, int],
    folder: str,
) -> None:
    backend, where = ("nccl", f"cuda:{rank}") if device == "cuda" else ("gloo", "cpu")
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    try:
        with torch.inference_mode():
            model, weights, rows = _part(bundle, draw(bundle), how, rank, ranks, where)
            times = []
            for _ in range(sum(rounds)):
                dist.barrier()
                _wait(device)
                begin = perf_counter()
                result = model(weights)
                _wait(device)
                times.append((perf_counter() - begin) * 1e3)
            slowest = torch.tensor(times[rounds[0] :], dtype=torch.float64, device=where)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        np.save(Path(folder) / f"{rank}.npy", result.float().cpu().numpy())
        np.save(Path(folder) / f"{rank}-rows.npy", rows)
        if rank == 0:
            np.save(Path(folder) / "times.npy", slowest.cpu().numpy())
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _part(
    bundle: Bundle, arrays: Arrays, how: str, rank: int, ranks: int, where: str
) -> tuple[Model, Weights, np.ndarray]:
    """A rank's model, what it is called with, and the rows of the output that it gives."""
    if how == ROWS:
        return _chain_by_rows(bundle, arrays, rank, ranks, where)
    lengths = sequence_lengths(bundle)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if how == BATCH:
        per_rank = len(lengths) // ranks
        own = range(rank * per_rank, (rank + 1) * per_rank)
        rows = np.arange(starts[own.start], starts[own.stop])
        attend = attend_to_own([lengths[number] for number in own])
    else:
        chunks = [length // ranks for length in lengths]
        firsts = [start + rank * chunk for start, chunk in zip(starts, chunks, strict=False)]
        rows = np.concatenate([np.arange(first, first + chunk) for first, chunk in zip(firsts, chunks, strict=True)])
        attend = _attend_to_gathered(chunks, rank, ranks)
    weights = given(bundle, arrays, device=where)
    for name in ("x", "cosine", "sine"):
        weights[name] = weights[name][torch.from_numpy(rows).to(where)].contiguous()
    return block_of(bundle, attend), weights, rows


def _attend_to_gathered(chunks: list[int], rank: int, ranks: int) -> Attend:
    """Queries of the rank's part of each sequence, with all keys before and in it: those of the other ranks are
    gathered whole, as no rank knows how long the others' work takes."""

    def gather(x: torch.Tensor) -> torch.Tensor:
        every = x.new_empty((ranks, *x.shape))
        dist.all_gather_into_tensor(every.flatten(0, 1), x.contiguous())
        return every

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = gather(k), gather(v)
        parts, first = [], 0
        for chunk in chunks:
            own = slice(first, first + chunk)
            seen = [each[: rank + 1, :, own].transpose(0, 1).flatten(1, 2)[None] for each in (keys, values)]
            mask = causal_lower_right(chunk, (rank + 1) * chunk)
            parts.append(F.scaled_dot_product_attention(q[None, :, own], *seen, attn_mask=mask, enable_gqa=True)[0])
            first += chunk
        return torch.cat(parts, 1)

    return attend


def _chain_by_rows(
    bundle: Bundle, arrays: Arrays, rank: int, ranks: int, where: str
) -> tuple[Model, Weights, np.ndarray]:
    steps = [
        tuple(bundle.tensors[position].name for position in (*operation.inputs, operation.outputs[0]))
        for operation in bundle.operations
    ]
    lefts = {left for left, _, _ in steps}
    weights = tensors(arrays, device=where)
    for name in lefts & set(weights):
        weights[name] = weights[name].tensor_split(ranks)[rank].contiguous()

    def chain(w: Weights) -> torch.Tensor:
        values = dict(w)
        for left, right, result in steps:
            whole = values[right]
            if right not in w:
                whole = whole.new_empty((ranks * whole.shape[0], whole.shape[1]))
                dist.all_gather_into_tensor(whole, values[right])
            values[result] = values[left] @ whole
        return values[steps[-1][-1]]

    total = bundle.tensors[bundle.operations[-1].outputs[0]].shape[0]
    return chain, weights, np.array_split(np.arange(total), ranks)[rank]


def run_alone(
    bundle: Bundle, draw: Callable[[Bundle], Arrays], device: str, rounds: tuple[int, int]
) -> tuple[list[float], np.ndarray]:
    """The same for the whole model on one GPU, or on the CPU with all its cores."""
    model = model_of(bundle)
    assert model is not None, "every workload has a model in PyTorch"
    times = []
    with torch.inference_mode():
        weights = given(bundle, draw(bundle), device=device)
        for _ in range(sum(rounds)):
            _wait(device)
            begin = perf_counter()
            result = model(weights)
            _wait(device)
            times.append((perf_counter() - begin) * 1e3)
    return times[rounds[0] :], result.float().cpu().numpy()
