"""The pairs of sites that a page writes as ranges are those of the machine."""

from __future__ import annotations

import pytest

from einc.machines.load import load_machine
from einc.report.html.places import describe_places


def read_ranges(ranges: list[int]) -> list[int]:
    return [site for first, stop in zip(ranges[::2], ranges[1::2], strict=True) for site in range(first, stop)]


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100x2", "l40s-pcie8x2"])
def test_pairs_are_those_of_the_machine(name: str) -> None:
    machine = load_machine(name)
    written = [row["pairs"] for row in describe_places(machine)["resources"]]
    assert any(isinstance(pairs, dict) for pairs in written)
    for resource, pairs in zip(machine.resources, written, strict=True):
        if isinstance(pairs, dict):
            pairs = [[a, b] for a in read_ranges(pairs["from"]) for b in read_ranges(pairs["to"]) if a != b]
        assert sorted(map(tuple, pairs)) == sorted(resource.pairs)
