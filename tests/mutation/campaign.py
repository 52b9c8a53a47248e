"""The campaign: mutants of all plans, chosen by a seed, each judged; counts of how they ended, and the faults."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from einc_runtime.plan.codec import HEADER, seal
from tests.mutation.fields import Edit, Tree, list_field_edits
from tests.mutation.judging import FAULTS, REFUSED, SAME, Verdict, judge
from tests.mutation.plans import CASES, make_plan
from tests.mutation.running import RunningProcess
from tests.mutation.together import list_joint_edits
from tests.support.plan_reports import close_payload, open_payload


@dataclass(slots=True)
class Counts:
    """How many mutants ended how, by the kind of change, and the faults: case, name of the change, verdict."""

    table: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[tuple[str, str, Verdict]] = field(default_factory=list)

    @property
    def mutants(self) -> int:
        return sum(counter.total() for counter in self.table.values())

    def format(self) -> str:
        """A table in Markdown: one row for each kind of change."""
        ends = (*REFUSED, SAME, *FAULTS)
        total = sum(self.table.values(), Counter[str]())
        shown = [end for end in ends if total[end] or end not in ("hung", "died")]
        lines = ["| changed | mutants | " + " | ".join(shown) + " |", "| --- " + "| ---: " * (len(shown) + 1) + "|"]
        for kind, counter in [*sorted(self.table.items()), ("together", total)]:
            cells = [f"{counter[end]:,}" for end in shown]
            lines.append(f"| {kind} | {counter.total():,} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def run_campaign(
    count: int, seed: int, cases: Sequence[str] = tuple(CASES), report: Callable[[Counts], None] = lambda _: None
) -> Counts:
    """Judges `count` mutants, the same for one seed; as many of each plan as of every other, while there are some.

    All plans, and all kinds of changes of all fields, take turns, so that few mutants meet each kind. `report` gets the
    counts after each.
    """
    counts, process = Counts(), RunningProcess()
    made = [_make(case, list(_choose(case, -(-count // len(cases)), seed))) for case in cases]
    try:
        for turn in zip_longest(*made):
            for case, mutant in zip(cases, turn, strict=True):
                if mutant is None:
                    continue
                kind, name, data = mutant
                verdict = judge(case, data, process)
                counts.table[kind][verdict.outcome] += 1
                if verdict.outcome in FAULTS:
                    counts.faults.append((case, name, verdict))
                report(counts)
    finally:
        process.stop()
    return counts


def judge_one(case: str, name: str) -> Verdict:
    """The verdict on the mutant of this name."""
    process = RunningProcess()
    try:
        for _, _, data in _make(case, [(name, "")]):
            return judge(case, data, process)
    finally:
        process.stop()
    raise KeyError(f"{case} has no change {name}")


def _list_edits(tree: Tree) -> Iterator[tuple[str, str, Edit]]:
    for field_, name, edit in list_field_edits(tree):
        yield field_.removeprefix("report.").partition(".")[0], name, edit
    for kind, name, edit in list_joint_edits(tree):
        yield kind, f"{kind}/{name}", edit


def _choose(case: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Names of changes and their kinds: one of each kind of place and way after the other, in an order of the seed."""
    tree = open_payload(make_plan(case)[HEADER.size :])
    strata: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind, name, _ in _list_edits(tree):
        strata[re.sub(r"\d+", "#", name)].append((name, kind))
    draw = random.Random(f"{seed} {case}")
    for names in strata.values():
        draw.shuffle(names)
    order = sorted(strata)
    draw.shuffle(order)
    turns = (one for turn in zip_longest(*(strata[key] for key in order)) for one in turn if one is not None)
    return (one for one, _ in zip(turns, range(count), strict=False))


def _make(case: str, names: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, bytes]]:
    """The mutants of these names: the kind of change, the name, and the bytes of the plan file."""
    payload = make_plan(case)[HEADER.size :]
    unchanged, kinds = close_payload(open_payload(payload)), dict(names)
    for kind, name, edit in _list_edits(open_payload(payload)):
        if name not in kinds:
            continue
        tree = open_payload(payload)
        try:
            edit(tree)
            mutant = close_payload(tree)
        except (OverflowError, ValueError, LookupError, TypeError):
            continue  # a number that msgpack has no room for; records that the change finds nothing in
        if mutant != unchanged:
            yield kind, name, seal(mutant)
