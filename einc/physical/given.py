"""A person's own exchange programs for operators and outputs of a plan (`compile --exchange NAME=FILE`)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from einc.errors import ProgramError, UsageError
from einc.exchange.bounds import bound
from einc.exchange.language.checker import check
from einc.exchange.language.parser import parse
from einc.exchange.language.printer import format_aggregate, format_size
from einc.exchange.language.program import Aggregate, Program, list_targets
from einc.exchange.language.resolve import Resolved, locate_fault, resolve_located
from einc.exchange.language.syntax import ProgramTree
from einc.exchange.synthesis.splitting import find_splits
from einc.graph.graph import Graph
from einc.machines.model import Machine
from einc.options import GivenExchange
from einc.physical.atoms import Inflow
from einc.physical.pieces import cut_as_asked, use_actions
from einc.physical.preamble import build_preamble
from einc.physical.schedule import OUTPUT, ScheduledExchange
from einc_runtime.text import suggest_name

_PREAMBLE_HINT = (
    "`einc explain MODEL.ein --preamble NAME`, with the same options, prints what the program has to start with"
)


class GivenExchanges:
    """Programs by the name of the exchange, or by a pattern such as `layer.*.up`.

    A name counts before patterns, and an earlier pattern before later ones. `lines` gets a line on every program used.
    """

    def __init__(self, exchanges: Sequence[GivenExchange], graph: Graph, machine: Machine, lines: list[str]) -> None:
        """Raises ProgramError for a text that is no program, UsageError for a name that no exchange can have."""
        self.lines = lines
        self._machine = machine
        self._told: set[str] = set()
        self._trees = [(exchange.name, parse(exchange.text, exchange.file)) for exchange in exchanges]
        names = [node.name for node in graph.nodes] + [OUTPUT.format(name) for name in graph.outputs]
        for exchange in exchanges:
            if not any(fnmatch.fnmatchcase(name, exchange.name) for name in names):
                raise UsageError(
                    f"--exchange: the model has no operator '{exchange.name}', and no output of this name",
                    hint=suggest_name(exchange.name, names),
                )

    def find(self, name: str, scheduled: ScheduledExchange) -> ProgramTree | None:
        """The program that is given for the exchange of this name; patterns leave out what has no exchange."""
        named = next((tree for pattern, tree in self._trees if pattern == name), None)
        if named is not None or scheduled.exchange is None:
            return named
        return next((tree for pattern, tree in self._trees if fnmatch.fnmatchcase(name, pattern)), None)

    def require_used(self) -> None:
        """Raises UsageError if a program was used for no exchange; to be called when a plan has been built."""
        for pattern, _ in self._trees:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in self._told):
                raise UsageError(f"--exchange: nothing that '{pattern}' stands for has an exchange in this plan")

    def use(
        self, name: str, tree: ProgramTree, inflows: Sequence[Inflow], scheduled: ScheduledExchange
    ) -> ScheduledExchange:
        """The given program in place of the one that was scheduled, with the given sites if it names any.

        Raises ProgramError where the program is for another exchange or is not valid, with its place in the text.
        """
        resolved = resolve_located(tree, self._machine)
        program, file = resolved.program, tree.source.file
        placement = _read_placement(name, resolved, scheduled.sites)
        preamble = build_preamble(inflows, placement, len(self._machine.sites))
        if preamble is None:
            raise ProgramError(
                f"{name} reads nothing that has to move, so it has no exchange",
                where=file,
                hint="leave its --exchange out",
            )
        try:
            splits = find_splits(program, preamble.program)
            cut = cut_as_asked(inflows, preamble, splits)
            _compare_preambles(name, resolved, cut.program)
            used = use_actions(cut, program.actions)
        except ProgramError as error:
            where = error.where or file
            raise ProgramError(f"{name}: {error.message}", where=where, hint=error.hint or _PREAMBLE_HINT) from None
        faults = check(used.program, self._machine).faults
        if faults:
            raise locate_fault(resolved, f"{name}: {faults[0].message}", faults[0].subject)
        chosen = replace(scheduled, sites=placement).take(used, splits, "user", self._machine)
        record = chosen.exchange
        if record is not None and (record.bound_ms is None or placement != scheduled.sites):
            certificate = bound(replace(used.program, actions=()), self._machine)
            record = msgspec.structs.replace(record, bound_ms=certificate.bound_ms, bound_by=certificate.bound_by)
            chosen = replace(chosen, exchange=record)
        if name not in self._told:  # a plan may be built several times
            self._told.add(name)
            self.lines.append(
                f"{name}: {file} takes {_format_time(chosen)}, what it replaces {_format_time(scheduled)}"
            )
        return chosen


def _format_time(scheduled: ScheduledExchange) -> str:
    exchange = scheduled.exchange
    return "0 ms" if exchange is None else f"{exchange.completion_ms:.4g} ms"


def _read_placement(name: str, resolved: Resolved, scheduled: Sequence[int]) -> tuple[int, ...]:
    """The sites of the function specifications: the members of the partitions S1, S2, ..., if the text has any."""
    partitions = resolved.program.partitions
    if not partitions:
        return tuple(scheduled)
    members = {partition.name: partition.members or () for partition in partitions}
    expected = [f"S{f + 1}" for f in range(len(scheduled))]
    if sorted(members) != sorted(expected) or any(len(sites) != 1 for sites in members.values()):
        raise ProgramError(
            f"{name} has {len(scheduled)} function specifications, so its program declares the partitions"
            f" {_shorten_list(expected)} of one site each, or none",
            where=resolved.source.file,
            hint=_PREAMBLE_HINT,
        )
    return tuple(members[partition][0] for partition in expected)


def _compare_preambles(name: str, resolved: Resolved, expected: Program) -> None:
    """Raises ProgramError, with its place, for the first difference between a text's preamble and the plan's."""
    program = resolved.program
    if program.gpus is not None and expected.gpus is not None and set(program.gpus) - set(expected.gpus):
        raise ProgramError(f"its GPUS are not those of the plan, {_shorten_list(list(map(str, expected.gpus)))}")
    held, expected_held = _collect_held(program), _collect_held(expected)
    for (aggregate, site), size in held.items():
        if (aggregate, site) not in expected_held:
            _fail(resolved, aggregate, f"IN has {format_aggregate(aggregate)} at site {site}, where the plan has none")
        true = expected_held[aggregate, site]
        if size != true and not any("." in atom for atom in aggregate):
            message = f"IN has {format_aggregate(aggregate)} with {format_size(size)}, and in the plan it has"
            _fail(resolved, aggregate, f"{message} {format_size(true)}")
    for aggregate, site in sorted(expected_held.keys() - held.keys()):
        raise ProgramError(f"IN lacks {format_aggregate(aggregate)} @ {site}, which the plan has there")
    stated = {
        (requirement.aggregate, site)
        for requirement in program.requirements
        for site in list_targets(program, requirement)
    }
    needed = {
        (requirement.aggregate, site)
        for requirement in expected.requirements
        for site in list_targets(expected, requirement)
    }
    for aggregate, site in sorted(stated - needed):
        _fail(resolved, aggregate, f"OUT has {format_aggregate(aggregate)} at site {site}, where nothing reads it")
    for aggregate, site in sorted(needed - stated):
        raise ProgramError(f"OUT lacks {format_aggregate(aggregate)} @ {site}, which {name} reads there")


def _collect_held(program: Program) -> dict[tuple[Aggregate, int], int]:
    return {(holding.aggregate, site): holding.size for holding in program.holdings for site in holding.sites}


def _fail(resolved: Resolved, aggregate: Aggregate, message: str) -> None:
    text_range = resolved.places.get(aggregate)
    raise ProgramError(message) if text_range is None else resolved.source.error(message, text_range)


def _shorten_list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ..., {names[-1]}"
