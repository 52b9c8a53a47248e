"""The picture of a cut, held against what the specs say."""

from __future__ import annotations

import itertools
from typing import Any

from einc.report.grid import draw_grid


def operation(counts: dict[str, int], output: tuple[str, ...], sites: list[int] | None = None) -> dict[str, Any]:
    """An operator over indices of extent 100 whose one output has the dimensions `output`."""
    intervals = {name: [[k * 100 // c, (k + 1) * 100 // c] for k in range(c)] for name, c in counts.items()}
    specs = []
    for position, chosen in enumerate(itertools.product(*intervals.values())):
        at = dict(zip(counts, chosen, strict=True))
        block = [[at[name][0] for name in output], [at[name][1] for name in output]]
        specs.append({"site": sites[position] if sites else position, "inputs": [], "outputs": [block]})
    return {"intervals": intervals, "specs": specs}


def test_partial_results_share_a_cell() -> None:
    lines = draw_grid(operation({"i": 2, "j": 2, "k": 2}, ("i", "k")))
    assert lines == [
        "       | k 0:50  50:100",
        "i 0:50 | 0+2     1+3",
        "50:100 | 4+6     5+7",
    ]


def test_sites_stand_where_they_were_placed() -> None:
    lines = draw_grid(operation({"i": 2, "k": 2}, ("i", "k"), [3, 1, 0, 2]))
    assert [line.split("|")[1].split() for line in lines[1:]] == [["3", "1"], ["0", "2"]]


def test_one_cut_index_is_one_row() -> None:
    assert draw_grid(operation({"i": 4, "k": 1}, ("i", "k")))[0].startswith("i 0:25")
    assert len(draw_grid(operation({"i": 4, "k": 1}, ("i", "k")))) == 2


def test_a_cut_of_the_summed_index_alone_shows_its_parts() -> None:
    lines = draw_grid(operation({"i": 1, "j": 3}, ("i",)))
    assert lines[0].split() == ["j", "0:33", "33:66", "66:100"]
    assert lines[1].split() == ["0", "1", "2"]


def test_a_third_index_of_the_output_is_listed_not_summed() -> None:
    lines = draw_grid(operation({"a": 2, "b": 2, "c": 2}, ("a", "b", "c")))
    assert "0,1" in lines[1]
    assert "+" not in "".join(lines)


def test_sites_that_compute_the_same_stand_together() -> None:
    once = operation({"i": 2, "k": 2}, ("i", "k"), [3, 1, 0, 2])
    again = operation({"i": 2, "k": 2}, ("i", "k"), [7, 4, 5, 6])
    lines = draw_grid({**once, "specs": once["specs"] + again["specs"]})
    assert [line.split("|")[1].split() for line in lines[1:]] == [["3=7", "1=4"], ["0=5", "2=6"]]


def test_nothing_cut_needs_no_picture() -> None:
    assert draw_grid(operation({"i": 1}, ("i",))) == []


def test_seventy_two_sites_fit_a_screen() -> None:
    for counts in ({"i": 72}, {"i": 8, "k": 9}, {"i": 72, "k": 1}, {"i": 2, "j": 36}, {"i": 3, "j": 3, "k": 8}):
        lines = draw_grid(operation(counts, ("i", "k") if "k" in counts else ("i",)))
        assert len(lines) <= 10
        assert max(map(len, lines)) <= 110, counts
    grid = draw_grid(operation({"i": 8, "k": 9}, ("i", "k")), complete=True)
    assert {int(cell) for line in grid[1:] for cell in line.split("|")[1].split()} == set(range(72))
