"""The exchange programs of well-known collectives, without buffers and thread blocks: who sends what to whom, when."""

from __future__ import annotations

from tests.truth.forms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER


def write_collective(collective: str, ranks: int, size: int) -> str:
    """NCCL's: a ring, or all sends at once."""
    write = {
        ALL_REDUCE: write_ring_all_reduce,
        ALL_GATHER: write_ring_all_gather,
        REDUCE_SCATTER: write_ring_reduce_scatter,
        ALL_TO_ALL: write_all_to_all,
    }
    return write[collective](ranks, size)


def write_ring_all_reduce(ranks: int, size: int) -> str:
    """Chunk c starts at the rank after c, is complete at rank c, and goes around once more."""
    wanted = "; ".join(f"{_sum(ranks, c)} @ {_list(ranks)}" for c in range(ranks))
    around = [
        f"{_sum(ranks, chunk)} @ {(chunk + step) % ranks} -> {(chunk + step + 1) % ranks}"
        for chunk in range(ranks)
        for step in range(ranks - 1)
    ]
    return _write(_hold_parts(ranks, size), wanted, [*_reduce_around(ranks), *around])


def write_ring_all_gather(ranks: int, size: int) -> str:
    held = "; ".join(f"c{r} @ {r} (size: {_piece(ranks, size)} B)" for r in range(ranks))
    wanted = "; ".join(f"c{r} @ {_list(ranks)}" for r in range(ranks))
    lines = [
        f"c{r} @ {(r + step) % ranks} -> {(r + step + 1) % ranks}" for r in range(ranks) for step in range(ranks - 1)
    ]
    return _write(held, wanted, lines)


def write_ring_reduce_scatter(ranks: int, size: int) -> str:
    wanted = "; ".join(f"{_sum(ranks, c)} @ {c}" for c in range(ranks))
    last = [f"{_sum(ranks, chunk)} @ {chunk}" for chunk in range(ranks)]
    return _write(_hold_parts(ranks, size), wanted, [*_reduce_around(ranks), *last])


def write_all_to_all(ranks: int, size: int) -> str:
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    held = "; ".join(f"x{a}_{b} @ {a} (size: {_piece(ranks, size)} B)" for a, b in pairs)
    wanted = "; ".join(f"x{a}_{b} @ {b}" for a, b in pairs)
    return _write(held, wanted, [f"x{a}_{b} @ {a} -> {b}" for a, b in pairs])


def write_one_shot(ranks: int, size: int) -> str:
    """Every rank gets the whole buffers of all others, and adds them."""
    held = "; ".join(f"c0_r{r} @ {r} (size: {size} B)" for r in range(ranks))
    lines = [f"c0_r{r} @ {r} -> {_list(ranks, without=r)}" for r in range(ranks)]
    lines += [f"{_sum(ranks, 0)} @ {r}" for r in range(ranks)]
    return _write(held, f"{_sum(ranks, 0)} @ {_list(ranks)}", lines)


def write_two_shot(ranks: int, size: int) -> str:
    """Every rank gets a p-th of the buffers of all others, adds them, and sends the sum to all."""
    wanted = "; ".join(f"{_sum(ranks, c)} @ {_list(ranks)}" for c in range(ranks))
    lines = [f"c{c}_r{r} @ {r} -> {c}" for c in range(ranks) for r in range(ranks) if r != c]
    lines += [f"{_sum(ranks, chunk)} @ {chunk} -> {_list(ranks, without=chunk)}" for chunk in range(ranks)]
    return _write(_hold_parts(ranks, size), wanted, lines)


def cut_preamble(text: str) -> str:
    """What is there and what is wanted, without the program."""
    return text.split("\n\n", 1)[0] + "\n"


def _write(held: str, wanted: str, lines: list[str]) -> str:
    return f"IN: {held}\nOUT: {wanted}\n\n" + "\n".join(lines) + "\n"


def _piece(ranks: int, size: int) -> int:
    return max(1, size // ranks)


def _list(ranks: int, without: int = -1) -> str:
    return ", ".join(str(rank) for rank in range(ranks) if rank != without)


def _sum(ranks: int, chunk: int) -> str:
    return "+".join(f"c{chunk}_r{rank}" for rank in range(ranks))


def _hold_parts(ranks: int, size: int) -> str:
    piece = _piece(ranks, size)
    return "; ".join(f"c{c}_r{r} @ {r} (size: {piece} B)" for c in range(ranks) for r in range(ranks))


def _reduce_around(ranks: int) -> list[str]:
    """Each sum passes on what the rank before has added."""
    lines = []
    for chunk in range(ranks):
        for step in range(ranks - 1):
            source, target = (chunk + 1 + step) % ranks, (chunk + 2 + step) % ranks
            parts = "+".join(f"c{chunk}_r{(chunk + 1 + k) % ranks}" for k in range(step + 1))
            lines.append(f"{parts} @ {source} -> {target}")
    return lines
