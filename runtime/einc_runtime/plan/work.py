"""What the time of a kernel depends on, beyond its operations and bytes: the sizes of what it computes.

A plan has such a record for every function that does more than go through its bytes, and models of machines read it.
"""

from __future__ import annotations

from einc_runtime.plan.record import Record


class WorkRecord(Record, frozen=True, tag_field="kind"):
    """The base of all kinds of work. Every field is a number of things, 0 or more."""


class ProductWork(WorkRecord, frozen=True, tag="product"):
    """`batch` products of a matrix of `rows` x `depth` with one of `depth` x `columns`."""

    batch: int
    rows: int
    columns: int
    depth: int


class AttentionWork(WorkRecord, frozen=True, tag="attention"):
    """Attention of `heads` query heads, `group` of which share keys and values, over `sequences` sequences.

    `queries` and `keys` are the tokens of all sequences together, and `pairs` the pairs of a query and a key that see
    each other, for one head. Queries and keys have `width` elements, values `value_width`.
    """

    heads: int
    group: int
    sequences: int
    queries: int
    keys: int
    pairs: int
    width: int
    value_width: int


class ExpertsWork(WorkRecord, frozen=True, tag="experts"):
    """Products of `picks` rows of `depth` elements, each with the matrix of one of `experts` experts, which gives
    `columns` elements."""

    experts: int
    picks: int
    columns: int
    depth: int


class RecurrenceWork(WorkRecord, frozen=True, tag="recurrence"):
    """`steps` that wait for each other, at `lanes` positions that do not.

    The longest chain of a step has `depth` scalar functions and, where it aggregates, `levels` of trees. Where what a
    step computes is too large for the registers of a program, each step has `launches`; else there are none of its own.
    """

    steps: int
    lanes: int
    depth: int
    levels: int
    launches: int


Work = ProductWork | AttentionWork | ExpertsWork | RecurrenceWork
