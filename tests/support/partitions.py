"""All ways to give sites to ranks."""

from __future__ import annotations


def partitions(sites):
    """The rank of every site, for every way to give sites to ranks; the ranks are numbered by their first sites."""
    if sites == 0:
        yield ()
        return
    for before in partitions(sites - 1):
        for rank in range(max(before, default=-1) + 2):
            yield (*before, rank)
