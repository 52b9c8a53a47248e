"""The report section of a plan file: how the plan was chosen, and what it was compared with. Nothing of it is run.

The runtime carries these bytes and does not look at them. So a report has a version of its own, and a plan whose report
is missing, or is of a version that this einc does not know, runs all the same. The bytes are the version (32 bits,
big-endian) and one MessagePack value, the record `PlanReport`. Like all of a plan file they are untrusted: their number
is bounded by the runtime, their types are closed, and every report has exactly one encoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from einc_runtime.errors import PlanFault
from einc_runtime.plan.checks import require, require_count, require_name, require_natural
from einc_runtime.plan.record import Record
from einc_runtime.plan.schema import Bundle
from einc_runtime.plan.validation import MAX_COUNT
from einc_runtime.text import escape_text

REPORT_VERSION = 2
"""It increases by one with every change of these records. Older versions are not read: a model is compiled again."""

MAX_PLANS = 64  # that a plan was compared with, of each kind
MAX_STAGES = 4096  # as many as a plan has sites at most, or parts of a batch
MAX_SHAPES = 4096  # all divisors of the number of sites, with some numbers of micro-batches each

_VERSION_FIELD = struct.Struct(">I")
_WHERE = "report"

_Plan = TypeVar("_Plan")


class ReportRecord(Record, frozen=True, omit_defaults=False):
    """Base of all parts of a report, which have all their fields there."""


class BaselineTime(ReportRecord, frozen=True):
    """A well-known plan of the same model, which the plan was compared with: its predicted time, and the bytes of its
    fullest site. `note` says why they are not known. `chosen` says that it was faster, so that this is the plan."""

    name: str
    predicted_ms: float | None = None
    memory: int | None = None
    note: str | None = None
    chosen: bool = False


class Contender(ReportRecord, frozen=True):
    """A plan that the search considered: its predicted time, the largest arena in bytes, and the paper's cost in
    elements; or the reason why there is none. The time is with `synthesized` exchanges, or else with naive ones; then
    `promised_ms` is about what it would be with synthesized ones, if the plan was to have such."""

    name: str
    chosen: bool = False
    predicted_ms: float | None = None
    memory: int | None = None
    cost: int | None = None
    reason: str | None = None
    synthesized: bool = False
    promised_ms: float | None = None


class MemoryPoint(ReportRecord, frozen=True):
    """The least predicted time among the plans that the search looked at and that need at most this memory per site."""

    memory: int
    predicted_ms: float


class ConsideredShape(ReportRecord, frozen=True):
    """A number of stages, of micro-batches of each replica, and of replicas, and what a plan with them takes: predicted
    of the whole plan if it was `built`, and estimated otherwise."""

    stages: int
    microbatches: int
    replicas: int
    predicted_ms: float
    built: bool = False
    chosen: bool = False


class PipelineStage(ReportRecord, frozen=True):
    """A stage of a plan: its sites in every replica, and the number of its operators, from the operator `first` on."""

    first: str
    operations: int
    sites: tuple[tuple[int, ...], ...]


class PlanReport(ReportRecord, frozen=True):
    """What is known of a plan's choice; None and nothing where it is not.

    `exact` says that no plan over the same candidates costs less, and `cut_cost` is the cost of the cut heuristic's
    plan. `memory_limit` is the number of bytes that the plan was to take of a site at most, if less than the machine
    has; the sites of the plan's machine file have so many. `unrestricted_ms` is the predicted time of the plan that
    would have been chosen without pins, and if it need not be reproducible. `baselines` and `contenders` are the plans
    that it was compared with, and `memory_points` time over memory.

    `stages` are those of a plan that divides its batch into parts, `microbatches` of each of its `replicas`. `shapes`
    are the other numbers of them that were considered.
    """

    exact: bool | None = None
    cut_cost: int | None = None
    memory_limit: int | None = None
    unrestricted_ms: float | None = None
    baselines: tuple[BaselineTime, ...] = ()
    contenders: tuple[Contender, ...] = ()
    memory_points: tuple[MemoryPoint, ...] = ()
    stages: tuple[PipelineStage, ...] = ()
    microbatches: int = 1
    replicas: int = 1
    shapes: tuple[ConsideredShape, ...] = ()


UNKNOWN_REPORT = PlanReport()
"""What is known where a plan has no report, or one of another version."""

_decoder = msgspec.msgpack.Decoder(PlanReport)
_encoder = msgspec.msgpack.Encoder(order="deterministic")


def encode_report(report: PlanReport) -> bytes:
    """The bytes of a report section; equal reports give equal bytes."""
    return _VERSION_FIELD.pack(REPORT_VERSION) + _encoder.encode(report)


def read_report(bundle: Bundle) -> PlanReport:
    """The report of a plan, or `UNKNOWN_REPORT` where `explain_unknown` says why. Raises PlanFault."""
    if explain_unknown(bundle) is not None:
        return UNKNOWN_REPORT
    payload = bundle.report[_VERSION_FIELD.size :]
    try:
        report = _decoder.decode(payload)
        canonical = _encoder.encode(report)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise PlanFault(f"it does not follow its schema: {escape_text(str(error))}", where=_WHERE) from None
    require(canonical == payload, _WHERE, "it is not in canonical form (duplicate keys, key order, or number width)")
    _check(report)
    return report


def explain_unknown(bundle: Bundle) -> str | None:
    """Why it is not known how a plan was chosen, and what to do; None where it is known."""
    unknown = "how it was chosen, and what it was compared with, is not known: compile the model again"
    if not bundle.report:
        return f"the plan has no report; {unknown}"
    if len(bundle.report) < _VERSION_FIELD.size:
        raise PlanFault(f"it ends after {len(bundle.report)} of the bytes of its version", where=_WHERE)
    (version,) = _VERSION_FIELD.unpack_from(bundle.report)
    if version != REPORT_VERSION:
        return f"the plan's report has version {version}, and this einc reads version {REPORT_VERSION}; {unknown}"
    return None


def _check(report: PlanReport) -> None:
    _check_count(report.cut_cost, "cut_cost")
    _check_count(report.memory_limit, "memory_limit")
    _check_duration(report.unrestricted_ms, "unrestricted_ms")
    for i, baseline in enumerate(_bounded(report.baselines, "baselines")):
        where = f"baselines[{i}]"
        _check_texts(where, name=baseline.name, note=baseline.note)
        _check_duration(baseline.predicted_ms, f"{where}.predicted_ms")
        _check_count(baseline.memory, f"{where}.memory")
        _check_all_or_none(where, baseline.predicted_ms, baseline.memory)
    for i, contender in enumerate(_bounded(report.contenders, "contenders")):
        where = f"contenders[{i}]"
        _check_texts(where, name=contender.name, reason=contender.reason)
        _check_duration(contender.predicted_ms, f"{where}.predicted_ms")
        _check_duration(contender.promised_ms, f"{where}.promised_ms")
        _check_count(contender.memory, f"{where}.memory")
        _check_count(contender.cost, f"{where}.cost")
        _check_all_or_none(where, contender.predicted_ms, contender.memory, contender.cost)
    for i, point in enumerate(_bounded(report.memory_points, "memory_points")):
        _check_count(point.memory, f"memory_points[{i}].memory")
        _check_duration(point.predicted_ms, f"memory_points[{i}].predicted_ms")
    require_count(report.stages, MAX_STAGES, f"{_WHERE}.stages")
    for i, stage in enumerate(report.stages):
        _check_texts(f"stages[{i}]", first=stage.first)
        _check_count(stage.operations, f"stages[{i}].operations")
        require(len(stage.sites) == report.replicas, f"{_WHERE}.stages[{i}].sites", "not those of every replica")
        for site in (site for sites in stage.sites for site in sites):
            require_natural(site, MAX_COUNT, f"{_WHERE}.stages[{i}].sites")
    for count, field in ((report.microbatches, "microbatches"), (report.replicas, "replicas")):
        require(1 <= count <= MAX_STAGES, f"{_WHERE}.{field}", f"{count} of them")
        require(count == 1 or len(report.stages) > 0, f"{_WHERE}.{field}", f"{count} of no stages")
    require_count(report.shapes, MAX_SHAPES, f"{_WHERE}.shapes")
    for i, shape in enumerate(report.shapes):
        _check_duration(shape.predicted_ms, f"shapes[{i}].predicted_ms")
        for count in (shape.stages, shape.microbatches, shape.replicas):
            require(1 <= count <= MAX_STAGES, f"{_WHERE}.shapes[{i}]", f"{count} is no number of stages")


def _bounded(plans: Sequence[_Plan], field: str) -> Sequence[_Plan]:
    require_count(plans, MAX_PLANS, f"{_WHERE}.{field}")
    return plans


def _check_texts(where: str, **texts: str | None) -> None:
    for field, text in texts.items():
        if text is not None:
            require_name(text, f"{_WHERE}.{where}.{field}")


def _check_count(count: int | None, where: str) -> None:
    if count is not None:
        require_natural(count, MAX_COUNT, f"{_WHERE}.{where}")


def _check_duration(ms: float | None, where: str) -> None:
    require(ms is None or 0 <= ms < math.inf, f"{_WHERE}.{where}", f"{ms} is not a duration")


def _check_all_or_none(where: str, *figures: float | None) -> None:
    known = {figure is not None for figure in figures}
    require(len(known) == 1, f"{_WHERE}.{where}", "only a part of it is known")
