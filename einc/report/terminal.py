"""What `einc explain` prints on a terminal: the document of `report.document` as text.

Operators with the same cut, placement and cost, as in the repeated blocks of a model, are shown once, so that the text
of a model of a hundred operators stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from einc.machines.picture import format_ranges
from einc.options import FASTEST
from einc.report.choices import format_choices
from einc.report.division import format_division, summarize_division
from einc.report.grid import draw_grid
from einc.report.known_steps import format_parallelism
from einc.report.launches import format_launches
from einc.report.paper_costs import (
    COST_PARTS,
    compare_with_paper,
    format_cheapest,
    format_costs,
    format_operation_cost,
    sum_cost_parts,
)
from einc.report.selection import format_contenders, format_memory_points, summarize_selection
from einc.report.step_parts import format_step
from einc.report.summary import group_alike, summarize_plan
from einc.report.tables import (
    align_columns,
    count_bytes_moved,
    describe_links,
    describe_operator_time,
    describe_trust,
    format_baselines,
    format_cut,
    format_ms,
    summarize_time,
    tabulate_times,
)
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, format_memory, shorten

Emphasis = Callable[[str], str]

MAX_SECTIONS = 16
"""Kinds of operators that have a section of their own, those with the most time first; the table lists all."""

MAX_INPUTS = MAX_OUTPUTS = 12
"""Inputs, and outputs, that are listed."""
MAX_WEIGHTS = 8
"""Kinds of weights with several copies that are listed."""


_AUTHORS = {"user": ", by a given program", "proposer": ", by a proposed program"}
"""What is said of exchange programs that the compiler did not write."""
_STARTS = {
    "replicated": "every site has what it reads when the clock starts",
    "once": "every block lies on one site when the clock starts, and others get it while the clock runs",
}


def format_overview(document: Document, strong: Emphasis = str, *, paper: bool = False) -> str:
    """The whole plan: what it takes and why, a table of all operators, and a section for each kind of them.

    The paper's cost is shown of plans that were chosen by it, and where `paper` asks for it.
    """
    paper = paper or document["selector"] != FASTEST
    groups = group_alike(document["ops"])
    head, *advice = summarize_plan(document)
    lines = [strong(head), *summarize_division(document["division"]), *advice, "", *_format_totals(document, paper), ""]
    lines += format_division(document["division"])
    lines += [*format_contenders(document, strong, paper=paper), *format_memory_points(document, strong)]
    times = _format_times(document, groups, strong)
    lines += [*times, *([""] if times else []), *_format_table(groups, strong, paper)]
    lines += format_costs(document) if paper else []
    shown = sorted(sorted(range(len(groups)), key=lambda g: (_rank(groups[g]), g))[:MAX_SECTIONS])
    for g in shown:
        lines += [
            "",
            *_format_section(groups[g], document["devices"], strong, paper=paper, tiled=document["division"] is None),
        ]
    if len(shown) < len(groups):
        left = len(groups) - len(shown)
        lines += ["", f"{left} shorter kinds of operators have no section here; --op NAME shows any operator."]
    lines += ["", *_format_inputs(document, strong), *_format_weights(document["weights"], strong)]
    return "\n".join([*lines, *_format_outputs(document, strong)]) + "\n"


def format_operator(document: Document, strong: Emphasis = str) -> str:
    """One operator, the only one in `document`, with all its blocks."""
    (operation,) = document["ops"]
    lines = [
        strong(format_heading(document)),
        "",
        *_format_section(
            [operation], document["devices"], strong, complete=True, paper=True, tiled=document["division"] is None
        ),
        "",
    ]
    for spec in operation["specs"]:
        reads, writes = (
            ", ".join(f"{name}{_format_block(block)}" for name, block in zip(operation[side], spec[side], strict=True))
            for side in ("inputs", "outputs")
        )
        lines.append(f"  site {spec['site']}: {reads} -> {writes}")
    for candidate in operation.get("candidates") or ():
        cost = candidate["cost"]
        terms = f"join {cost['join']:,}, aggregation {cost['aggregation']:,}"
        lines.append(f"  could be {format_cut(candidate)}: {terms}")
    if operation["exchange"] is not None:
        lines += ["", "  its exchange program:"]
        lines += [f"    {line}" for line in operation["exchange"]["program"].rstrip().splitlines()]
    return "\n".join(lines) + "\n"


def format_heading(document: Document) -> str:
    """The model, the machine and the time of a plan, and how it was chosen."""
    known = document["predicted_ms"]
    time = "" if known is None else f", predicted {format_ms(known)}{describe_trust(document)}"
    heading = f"{document['model']} on {format_count(document['devices'], 'site')} of {document['machine']}"
    return f"{heading}{time}{_format_options(document)}"


def _format_options(document: Document) -> str:
    """The options that a plan was made with, where they are not the usual ones."""
    usual = {"selector": FASTEST, "schedule": "synthesized", "input_placement": "replicated"}
    named = [f"{name.replace('_', ' ')} {document[name]}" for name, value in usual.items() if document[name] != value]
    return f" ({', '.join(named)})" if named else ""


def _rank(group: Sequence[Document]) -> tuple[float, int]:
    """The smaller, the more a kind of operators matters: by its part of the critical path, then by its cost."""
    critical = sum(operation["time"]["critical_ms"] for operation in group if operation["time"] is not None)
    return -round(critical, 6), -sum_cost_parts(group[0]) * len(group)


def _format_totals(document: Document, paper: bool) -> list[str]:
    options = _format_options(document)
    memory, limit = document["memory_bytes"], document["memory_limit"]
    allowed = "" if limit is None else f" of {format_memory(limit)} that it may take"
    return [
        *([f"made with other options than the usual ones{options}"] if options else []),
        summarize_time(document),
        *format_parallelism(document["parallelism"]),
        *summarize_selection(document),
        *(compare_with_paper(document) if paper else []),
        *format_choices(document),
        *format_baselines(document["baselines"]),
        f"memory per site {_format_range(memory)}{allowed}; moved {format_memory(count_bytes_moved(document))}",
        *format_step(document["step"]),
        *_format_exchanges(document),
        *format_launches(document),
        f"inputs and weights: {_STARTS[document['input_placement']]}",
        *_format_restrictions(document),
        *(document[field] for field in ("note", "unknown") if document[field] is not None),
    ]


def _format_restrictions(document: Document) -> list[str]:
    """What a reproducible plan promises, and what that and pins cost."""
    ms, free_ms = document["predicted_ms"], document["unrestricted_ms"]
    pins = " without these pins" if any(operation["pin"] for operation in document["ops"]) else ""
    price = f"is predicted to take {free_ms:,.3f} ms, this one {ms / free_ms:.2f} times it" if ms and free_ms else None
    if document["reproducible"]:
        promise = "reproducible: the same bits for any number of sites and any cuts"
        return [promise if price is None else f"{promise}; a plan that is not{pins and ',' + pins + ','} {price}"]
    return [] if price is None else [f"a plan{pins} {price}"]


def _format_exchanges(document: Document) -> list[str]:
    """The time of all exchanges together, and the ratio to their lower bounds."""
    exchanges = [part["exchange"] for part in (*document["ops"], *document["outputs"]) if part["exchange"] is not None]
    if not exchanges or not all(map(_is_timed, exchanges)):
        return []
    taken, naive, bound = (sum(row[field] for row in exchanges) for field in ("completion_ms", "naive_ms", "bound_ms"))
    text = f"exchanges {taken:,.3f} ms, {_format_gap(taken, bound)}"
    return [text + (f"; naive {naive:,.3f} ms" if naive != taken else "")]


def _is_timed(exchange: Document) -> bool:
    """Whether the times of an exchange are known; they are not if its program is too long to be read again."""
    return all(exchange[field] is not None for field in ("completion_ms", "naive_ms", "bound_ms"))


def _format_gap(taken: float, bound: float) -> str:
    return f"{taken / bound:.2f} times the bound" if bound else "the bound is 0"


def _format_table(groups: Sequence[Sequence[Document]], strong: Emphasis, paper: bool) -> list[str]:
    rows = [["operator", "", "cut", "moved", *(COST_PARTS if paper else ())]]
    for group in groups:
        first = group[0]
        name = first["name"] if len(group) == 1 else f"{first['name']} (x{len(group)})"
        rows.append(
            [
                name,
                shorten(first["op"], 28),
                format_cut(first) + (" (pinned)" if first["pin"] else ""),
                format_memory(first["moves"]["bytes"]) if first["moves"]["bytes"] else "-",
                *(f"{first['cost'][part]:,}" for part in (COST_PARTS if paper else ())),
            ]
        )
    lines = align_columns(rows, right=(3, 4, 5, 6))
    return [strong(lines[0]), *lines[1:]]


def _format_times(document: Document, groups: Sequence[Sequence[Document]], strong: Emphasis) -> list[str]:
    rows = tabulate_times(document, groups)
    if not rows:
        return []
    table = align_columns(rows, right=(1, 2, 3, 4, 5, 6))
    links = describe_links(document)
    return [strong(table[0]), *table[1:], *(["", strong(links[0]), *links[1:]] if links else [])]


def _format_section(
    group: Sequence[Document], sites: int, strong: Emphasis, *, complete: bool = False, paper: bool, tiled: bool
) -> list[str]:
    """The decisions for the first of a group of equal operators; `tiled` says what its parts are."""
    operation = group[0]
    title = f"{', '.join(operation['outputs'])} = {operation['op']}({', '.join(operation['inputs'])})"
    lines = [strong(title) + (f"   {operation['source']}" if operation["source"] else "")]
    if len(group) > 1:
        names = [operation_alike["name"] for operation_alike in group[1:]]
        listed = ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, ... {names[-1]}"
        lines.append(f"  and {len(names)} like it: {listed}")
    lines += [f"    {line}" for line in draw_grid(operation, complete=complete)] or ["    not cut"]
    if operation["replicas"] > 1:
        lines.append(f"  computed on {format_count(operation['replicas'], 'site')} each")
    if operation["parts"] > 1:
        told = (
            "tiles: sites send one while they compute the next" if tiled else "parts of the batch, as their data comes"
        )
        lines.append(f"  computed in {operation['parts']} {told}")
    idle = operation["idle_sites"]
    if idle:
        lines.append(f"  {sites - len(idle)} of {sites} sites work; idle: {format_ranges(idle)}")
    lines.append(f"  {describe_operator_time(operation)}")
    lines.append(f"  {_format_movement(operation)}")
    lines += [f"  {format_operation_cost(operation)}"] if paper else []
    if operation["pin"] is not None:
        lines.append(f"  pinned to {operation['pin']}")
    return [*lines, *(_format_alternatives(operation, paper) if operation["parts"] == 1 else [])]


def _format_movement(operation: Document) -> str:
    exchange = operation["exchange"]
    text = _format_moves(operation) if operation["moves"]["transfers"] else "moves nothing between sites"
    if exchange is not None and _is_timed(exchange):
        text += f", {exchange['completion_ms']:.3f} ms"
        if exchange["naive_ms"] != exchange["completion_ms"]:
            text += f" (naive {exchange['naive_ms']:.3f} ms)"
        text += _AUTHORS.get(exchange["author"], "")
        proof = shorten(exchange["bound_by"] or "the plan does not say why", 70)
        text += f"\n  no program takes less than {exchange['bound_ms']:.3f} ms: {proof}"
    return text


def _format_moves(part: Document) -> str:
    moves = part["moves"]
    if not moves["transfers"]:
        return "moves nothing"
    return f"moves {format_memory(moves['bytes'])} in {format_count(moves['transfers'], 'transfer')}"


def _format_alternatives(operation: Document, paper: bool) -> list[str]:
    """The best other cuts of an operator: by time, if the plan was chosen by time, and by the paper's cost."""
    faster = operation["next_fastest"]
    if faster is None:
        return [f"  next best: {format_cheapest(operation)}"]
    more = faster["more_ms"]
    time = f"about {abs(more):.3f} ms {'more' if more >= 0 else 'less'}" if round(abs(more), 3) else "about as fast"
    lines = [f"  next best by time: {format_cut(faster)}, {time}"]
    return [*lines, *([f"  next best by the paper's cost: {format_cheapest(operation)}"] if paper else [])]


def _format_inputs(document: Document, strong: Emphasis) -> list[str]:
    """The inputs that a run takes, and where they lie before the clock starts."""
    rows, once = document["inputs"], document["input_placement"] == "once"
    if not rows:
        return []
    left = [f"  and {len(rows) - MAX_INPUTS} more"] if len(rows) > MAX_INPUTS else []
    lines = [f"  {row['name']}: {_format_type(row)}{f', {_format_places(row)}' if once else ''}"
             for row in rows[:MAX_INPUTS]]  # fmt: skip
    return [strong("inputs"), *lines, *left, ""]


def _format_type(row: Document) -> str:
    dims = ", ".join(f"{name}={extent}" for name, extent in zip(row["dims"], row["shape"], strict=True))
    return f"{row['dtype']}[{dims}]"


def _format_outputs(document: Document, strong: Emphasis) -> list[str]:
    lines = [strong("outputs")]
    for output in document["outputs"][:MAX_OUTPUTS]:
        exchange = output["exchange"]
        times = f", {exchange['completion_ms']:.3f} ms" if exchange is not None and _is_timed(exchange) else ""
        times += "" if exchange is None else _AUTHORS.get(exchange["author"], "")
        places = _format_places(output)
        lines.append(f"  {output['name']}: {_format_type(output)}, {places}; {_format_moves(output)}{times}")
    left = len(document["outputs"]) - MAX_OUTPUTS
    return [*lines, *([f"  and {left} more"] if left > 0 else [])]


def _format_places(row: Document) -> str:
    """The number of blocks of a tensor, and their sites."""
    sites = set(row["sites"])
    if not sites:
        return "read nowhere"
    return f"{format_count(len(row['blocks']), 'block')} at site{'s' if len(sites) > 1 else ''} {format_ranges(sites)}"


def _format_weights(rows: Sequence[Document], strong: Emphasis) -> list[str]:
    """The bytes of weights on each site, and the weights whose copies take the most bytes."""
    if not rows:
        return []
    resident, also = ([sum(row[field][site] for row in rows) for site in range(len(rows[0][field]))]
                  for field in ("site_bytes", "replicated_bytes"))  # fmt: skip
    total = f"  {format_memory(sum(row['bytes'] for row in rows))} in {format_count(len(rows), 'tensor')}"
    lines = [
        strong("weights"),
        f"{total}; {_format_range(resident)} on each site, of which other sites hold {_format_range(also)} too",
    ]
    rows_by_size: dict[tuple[float, int], list[Document]] = {}
    for row in rows:
        if row["copies"] > 1:
            rows_by_size.setdefault((row["copies"], row["bytes"]), []).append(row)
    extra = sorted(rows_by_size.items(), key=lambda item: -(item[0][0] - 1) * item[0][1] * len(item[1]))
    for (copies, count), group in extra[:MAX_WEIGHTS]:
        more = f" and {len(group) - 1} of its size" if len(group) > 1 else ""
        lines.append(f"  {copies:g} copies of {group[0]['name']}{more}, {format_memory(count)} each")
    if len(extra) > MAX_WEIGHTS:
        left = sum(len(group) for _, group in extra[MAX_WEIGHTS:])
        lines.append(f"  and more copies than one of {left} smaller ones")
    return [*lines, ""]


def _format_range(counts: Sequence[int]) -> str:
    low, high = format_memory(min(counts)), format_memory(max(counts))
    return low if low == high else f"{low} to {high}"


def _format_block(block: list[list[int]]) -> str:
    return "[" + ", ".join(f"{lower}:{upper}" for lower, upper in zip(*block, strict=True)) + "]"
