"""The collectives of NCCL as exchange programs: rings, which pass a p-th of the data in each step, and direct sends.

`size` is that of nccl-tests, in bytes: the whole buffer of an all-reduce, all that a rank has after an all-gather, all
that it gives to a reduce-scatter and to an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def write_all_reduce(ranks: int, size: int) -> str:
    """A reduce-scatter and an all-gather around one ring: chunk c starts at rank c + 1, and is complete at rank c."""
    actions = [action for chunk in range(ranks) for action in _reduce(ranks, chunk)]
    for chunk in range(ranks):
        for step in range(ranks - 1):
            source = (chunk + step) % ranks
            actions.append(f"{_name_sum(chunk, range(ranks))} @ {source} -> {(source + 1) % ranks}")
    wanted = [f"{_name_sum(chunk, range(ranks))} @ {_list(range(ranks))}" for chunk in range(ranks)]
    return _join(_hold_parts(ranks, size), wanted, actions)


def write_reduce_scatter(ranks: int, size: int) -> str:
    actions = []
    for chunk in range(ranks):
        actions += [*_reduce(ranks, chunk), f"{_name_sum(chunk, range(ranks))} @ {chunk}"]
    wanted = [f"{_name_sum(chunk, range(ranks))} @ {chunk}" for chunk in range(ranks)]
    return _join(_hold_parts(ranks, size), wanted, actions)


def write_all_gather(ranks: int, size: int) -> str:
    held = [f"c{rank} @ {rank} (size: {max(1, size // ranks)} B)" for rank in range(ranks)]
    wanted = [f"c{rank} @ {_list(range(ranks))}" for rank in range(ranks)]
    actions = [
        f"c{rank} @ {(rank + step) % ranks} -> {(rank + step + 1) % ranks}"
        for rank in range(ranks)
        for step in range(ranks - 1)
    ]
    return _join(held, wanted, actions)


def write_all_to_all(ranks: int, size: int) -> str:
    pairs = [(source, target) for source in range(ranks) for target in range(ranks) if source != target]
    held = [f"x{a}_{b} @ {a} (size: {max(1, size // ranks)} B)" for a, b in pairs]
    return _join(held, [f"x{a}_{b} @ {b}" for a, b in pairs], [f"x{a}_{b} @ {a} -> {b}" for a, b in pairs])


WRITERS: dict[str, Callable[[int, int], str]] = {
    "all_reduce": write_all_reduce,
    "all_gather": write_all_gather,
    "reduce_scatter": write_reduce_scatter,
    "alltoall": write_all_to_all,
}
"""By the names of nccl-tests."""


def _reduce(ranks: int, chunk: int) -> list[str]:
    """A chunk passes all ranks, and each adds its part."""
    passed = [(chunk + 1 + step) % ranks for step in range(ranks)]
    return [f"{_name_sum(chunk, passed[: k + 1])} @ {passed[k]} -> {passed[k + 1]}" for k in range(ranks - 1)]


def _hold_parts(ranks: int, size: int) -> list[str]:
    piece = max(1, size // ranks)
    return [f"c{chunk}_r{rank} @ {rank} (size: {piece} B)" for chunk in range(ranks) for rank in range(ranks)]


def _name_sum(chunk: int, ranks: Sequence[int]) -> str:
    return "+".join(f"c{chunk}_r{rank}" for rank in ranks)


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _join(held: Sequence[str], wanted: Sequence[str], actions: Sequence[str]) -> str:
    return f"IN: {'; '.join(held)}\nOUT: {'; '.join(wanted)}\n\n" + "\n".join(actions) + "\n"
