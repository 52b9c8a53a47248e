"""Proves the exchanges of a plan: that their texts say what the tasks do, and their times and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from einc.errors import EincError
from einc.exchange.bounds import bound
from einc.exchange.language.checker import check
from einc.exchange.language.closure import order_firings
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Program, collect_atom_sizes
from einc.exchange.language.resolve import read_program
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import simulate
from einc.exchange.synthesis.splitting import find_splits, join_pieces
from einc.machines.model import Machine
from einc.plan_reading.timing import Label, make_labeller
from einc.verification.comparison import PRECISION, require_equal, require_time
from einc_runtime.errors import PlanFault
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.schema import AggregateTask, Bundle, Exchange, Operation, Output, TransferTask

MAX_TIMED_ACTIONS = 20_000
"""Exchanges of more actions, all in all, have their texts compared with the tasks, and neither times nor bounds
computed again: that could take minutes."""


@dataclass(slots=True)
class MovedBytes:
    """What an exchange does: bytes by sender and receiver, and bytes that are combined, by site."""

    sent: Counter[tuple[int, int]]
    combined: Counter[int]


def verify_exchanges(bundle: Bundle, machine: Machine) -> Iterator[str]:
    """Yields what remains unproved. Raises PlanFault at the first thing that does not hold."""
    done = _collect_traffic(bundle)
    known: dict[bytes, MovedBytes] = {}
    actions = placements = untimed = 0
    for where, label, exchanges in _list_exchanges(bundle):
        stated = MovedBytes(Counter(), Counter())
        for exchange in exchanges:
            key = msgspec.msgpack.encode(exchange)
            if key not in known:
                program = _read_exchange(exchange, where, machine)
                actions += len(program.actions)
                if actions <= MAX_TIMED_ACTIONS:
                    try:
                        placements += _verify_times(exchange, program, where, machine)
                    except EincError as error:
                        raise PlanFault(error.message, where=where) from None
                else:
                    untimed += 1
                known[key] = _describe_traffic(program)
            stated.sent.update(known[key].sent)
            stated.combined.update(known[key].combined)
            if exchange.bound_free_ms is not None:
                placements += 1
        _compare_traffic(where, stated, done.get(label, MovedBytes(Counter(), Counter())))
    if untimed:
        yield f"the times and bounds of {untimed} exchanges, which are too large to be simulated here"
    if placements:
        yield "`bound_free_ms`, and `naive_ms` of exchanges for other sites than the naive ones"


def _list_exchanges(bundle: Bundle) -> Iterator[tuple[str, Label, list[Exchange]]]:
    """The exchanges of every operation and output: one for each part that anything moves for."""

    def list_parts(record: Operation | Output) -> list[Exchange]:
        return [exchange for exchange in (record.exchange, *record.later) if exchange is not None]

    for o, operation in enumerate(bundle.operations):
        yield f"operations[{o}] ('{operation.name}').exchange", (operation.name, False), list_parts(operation)
    for o, output in enumerate(bundle.outputs):
        name = bundle.tensors[output.tensor].name
        yield f"outputs[{o}] ('{name}').exchange", (name, True), list_parts(output)


def _read_exchange(exchange: Exchange, where: str, machine: Machine) -> Program:
    """The program of an exchange, which must be valid and written as the compiler writes programs."""
    try:
        program = read_program(exchange.program, where, machine)
        verdict = check(program, machine)
    except EincError as error:
        raise PlanFault(error.message, where=f"{where}.program") from None
    if verdict.faults:
        raise PlanFault(f"the program is not valid: {verdict.faults[0]}", where=f"{where}.program")
    parts = (program.holdings, program.requirements)
    if print_program(program) != exchange.program or any(len(set(part)) < len(part) for part in parts):
        raise PlanFault("it is not written as the compiler writes programs", where=f"{where}.program")
    return program


def _verify_times(exchange: Exchange, program: Program, where: str, machine: Machine) -> bool:
    """Whether a time was left out that depends on sites that the plan does not name."""
    try:
        unsplit = join_pieces(program, exchange.splits)
        if find_splits(program, unsplit) != exchange.splits:
            raise PlanFault("they are not the pieces of the program", where=f"{where}.splits")
        completion = simulate(program, machine).completion_ms
        naive_program = build_naive_body(unsplit, machine)
        naive = simulate(naive_program, machine).completion_ms
    except ValueError as error:
        raise PlanFault(f"the splits do not fit the program: {error}", where=f"{where}.splits") from None
    if exchange.completion_ms is not None:
        require_time(f"{where}.completion_ms", exchange.completion_ms, completion)
    elif exchange.bound_ms is not None or exchange.naive_ms is not None:
        raise PlanFault("there is no time beside the others", where=f"{where}.completion_ms")
    if exchange.naive and print_program(naive_program) != exchange.program:
        raise PlanFault("the program is not the naive one", where=f"{where}.naive")
    if exchange.naive and exchange.naive_ms != exchange.completion_ms:
        raise PlanFault("it differs from the time of the program, which is the naive one", where=f"{where}.naive_ms")
    moved = False
    if exchange.naive_ms is not None and not exchange.naive:
        moved = abs(exchange.naive_ms - naive) > PRECISION * naive
        if moved and exchange.naive_ms < completion and exchange.author == "compiler":
            raise PlanFault("the program is slower than the naive one", where=f"{where}.naive_ms")
    _verify_bounds(exchange, unsplit, where, machine)
    return moved


def _verify_bounds(exchange: Exchange, unsplit: Program, where: str, machine: Machine) -> None:
    """The bound is what can be proved of the preamble, or less where it is said to hold on any sites."""
    known = exchange.bound_ms is not None
    if known != (exchange.bound_by is not None):
        raise PlanFault("a bound and what proves it belong together", where=f"{where}.bound_by")
    if exchange.bound_free_ms is not None and not (known and exchange.bound_free_ms <= (exchange.bound_ms or 0)):
        raise PlanFault("it is more than the bound for these sites", where=f"{where}.bound_free_ms")
    if exchange.bound_ms is None:
        return
    # As the compiler does it: where one link is all there is, linear programs prove no more than cuts.
    certificate = bound(unsplit, machine, thorough=len(machine.resources) > 1)
    free = exchange.bound_free_ms
    if free is not None and exchange.bound_ms <= free * (1 + PRECISION) and exchange.bound_ms <= certificate.bound_ms:
        if exchange.bound_ms >= certificate.bound_ms * (1 - PRECISION):
            require_equal(f"{where}.bound_by", exchange.bound_by, certificate.bound_by)
        return
    require_time(f"{where}.bound_ms", exchange.bound_ms, certificate.bound_ms)
    require_equal(f"{where}.bound_by", exchange.bound_by, certificate.bound_by)


def _describe_traffic(program: Program) -> MovedBytes:
    """What a program does. Aggregates are combined where they are formed, in an action or at the end."""
    sizes, sent, combined = collect_atom_sizes(program), Counter[tuple[int, int]](), Counter[int]()
    for firing in order_firings(program):
        size = sizes[firing.action.aggregate[0]]
        for destination in firing.action.destinations:
            sent[firing.action.source, destination] += size
        if len(firing.parts) > 1:
            combined[firing.action.source] += size * (len(firing.parts) - 1)
    return MovedBytes(sent, combined)


def _collect_traffic(bundle: Bundle) -> dict[Label, MovedBytes]:
    """What the tasks do, by what they serve."""
    label = make_labeller(bundle)
    traffic_of_label: dict[Label, MovedBytes] = {}
    for task in bundle.tasks:
        if isinstance(task, TransferTask):
            target = bundle.buffers[task.write.buffer].site
            traffic = traffic_of_label.setdefault(label(task), MovedBytes(Counter(), Counter()))
            traffic.sent[task.site, target] += region_bytes(bundle, task.read)
        elif isinstance(task, AggregateTask):
            traffic = traffic_of_label.setdefault(label(task), MovedBytes(Counter(), Counter()))
            copies = len(task.reads) // len(task.writes)
            size = sum(region_bytes(bundle, region) for region in task.writes)
            traffic.combined[task.site] += size * (copies - 1)
    return traffic_of_label


def _compare_traffic(where: str, program: MovedBytes, tasks: MovedBytes) -> None:
    for pair in sorted(program.sent.keys() | tasks.sent.keys()):
        if program.sent[pair] != tasks.sent[pair]:
            stated = f"the program sends {program.sent[pair]} bytes from site {pair[0]} to site {pair[1]}"
            raise PlanFault(f"{stated}, and the tasks send {tasks.sent[pair]}", where=f"{where}.program")
    for site in sorted(program.combined.keys() | tasks.combined.keys()):
        if program.combined[site] != tasks.combined[site]:
            stated = f"the program combines {program.combined[site]} bytes at site {site}"
            raise PlanFault(f"{stated}, and the tasks combine {tasks.combined[site]}", where=f"{where}.program")
