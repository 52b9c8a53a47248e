"""Pages as text: one file each, that needs no other and asks for nothing, whoever opens it.

The policy in the page's head lets the browser run our script alone, told by its hash, and load nothing. Names from a
plan may be any text: templates escape them, data stands in JSON, and the script only ever makes text of them.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einc.machines.model import Machine
from einc.plan_reading.timing import Timing, read_plan_machine, time_plan
from einc.report.differences import compare_plans
from einc.report.document import explain
from einc.report.html.answer import describe_answer, describe_trust_apart, list_program_facts
from einc.report.html.embedding import share_parts, write_runs, write_script_element
from einc.report.html.measured import describe_trace
from einc.report.html.memory import describe_memory
from einc.report.html.network import describe_network
from einc.report.html.places import describe_places
from einc.report.html.programs import describe_programs, draw_program
from einc.report.html.tasks import NS_PER_MS, describe_idle_time, describe_tasks
from einc.report.machine_costs import describe_rates
from einc_runtime.plan.repetition import find_copied, unfold_statements
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, shorten
from einc_runtime.version import VERSION

if TYPE_CHECKING:
    import jinja2

    from einc.exchange.language.program import Program


FOLDER = Path(__file__).parent
SCRIPTS = (
    "read.js", "dom.js", "scales.js", "columns.js", "operator.js", "model.js", "rows.js", "timeline.js", "machine.js",
    "exchanges.js", "memory.js", "comparison.js", "main.js",
)  # fmt: skip
"""In the order in which they are put together."""

MAX_TITLE = 120
"""Characters of the title of a page, which browsers cut anyway."""

MAX_DRAWN_CHANGES = 100
"""Kinds of operators that differ from one plan to another and whose cuts are drawn beside each other."""

MAX_FRAMED_TASKS = 20_000
"""Of a plan with more tasks, a notebook shows the first section alone."""


def write_plan_page(
    bundle: Bundle,
    *,
    ideal: bool = False,
    document: Document | None = None,
    timing: Timing | None = None,
    against: Bundle | None = None,
    trace: tuple[bytes, str] | None = None,
) -> str:
    """The page of a plan, which may say a layer once: its tasks are then drawn once, too.

    `document` is what `explain` says of it with the same `ideal`, and `timing` its timeline, where they are known.
    `against` is a plan to compare it with, and `trace` the bytes of a measured trace with the name of their file.
    Raises PlanFault for a trace that is not one of this plan.
    """
    machine = read_plan_machine(bundle)
    machine = machine.ideal() if ideal else machine
    timing = timing or time_plan(bundle, machine)
    document = document or explain(bundle, ideal=ideal, timing=timing)
    measured = None if trace is None else describe_trace(trace[0], bundle, timing.times, trace[1])
    told = unfold_statements(bundle)
    data: Document = {
        "kind": "plan",
        "version": VERSION,
        **share_parts(document),
        "tensors": [[tensor.name, tensor.kind] for tensor in told.tensors],
        "model": describe_network(told, document["ops"]),
        "tasks": write_runs(describe_tasks(told, timing)),
        "idle": describe_idle_time(told, timing, machine),
        "measured": measured,
        "machine": describe_places(machine),
        "programs": describe_programs(document, machine),
        "memory": write_runs(describe_memory(told, timing.times)),
        "comparison": None if against is None else _compare(bundle, against, ideal),
    }
    data |= share_programs(data.pop("programs"), data["shared"])
    measured_ms = None if measured is None else measured["end"] / NS_PER_MS
    return _render(
        _name_plan(bundle),
        data,
        answer=describe_answer(document, [site.memory_bytes for site in machine.sites], measured_ms),
        document=document,
        compared=against is not None,
        layer=_describe_layer(bundle),
        has_trace=measured is not None,
    )


def frame_plan_page(bundle: Bundle) -> str:
    """The page of a plan as HTML for a notebook: a frame of its own, so that neither can change the other.

    Of a plan of more than MAX_FRAMED_TASKS tasks it is the first section alone.
    """
    if len(bundle.tasks) <= MAX_FRAMED_TASKS:
        page = write_plan_page(bundle)
    else:
        machine, document = read_plan_machine(bundle), explain(bundle, with_alternatives=False)
        answer = describe_answer(document, [site.memory_bytes for site in machine.sites])
        page = _render(_name_plan(bundle), {"kind": "answer", "version": VERSION}, answer=answer, document=document)
    style = "width:100%;height:760px;border:1px solid #8888;border-radius:8px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def write_machine_page(machine: Machine) -> str:
    data: Document = {"kind": "machine", "version": VERSION, "machine": describe_places(machine)}
    title = f"{shorten(machine.name, MAX_TITLE)}: {format_count(len(machine.sites), 'site')}"
    return _render(title, data, rates=describe_rates(machine))


def write_program_page(program: Program, machine: Machine, exchange: Document, name: str) -> str:
    """The page of one exchange program on a machine; `exchange` has its text and times as in a plan."""
    from einc.exchange.simulation.simulator import simulate

    drawn = draw_program(program, simulate(program, machine), machine)
    row = {"names": [name], "exchange": exchange, "drawn": _write_drawn(drawn)}
    data: Document = {"kind": "exchange", "version": VERSION, "machine": describe_places(machine), "programs": [row]}
    title = f"{shorten(name, MAX_TITLE)} on {shorten(machine.name, 40)}"
    return _render(title, data, facts=list_program_facts(exchange))


def share_programs(programs: list[Document], shared: list[Any]) -> Document:
    """The programs with what the document of the plan has already as a reference to it."""
    known = {id(part): position for position, part in enumerate(shared)}
    rows = [
        {
            "names": row["names"],
            "exchange": {"$": known[id(row["exchange"])]} if id(row["exchange"]) in known else row["exchange"],
            "drawn": row["drawn"] and _write_drawn(row["drawn"]),
        }
        for row in programs
    ]
    return {"programs": rows}


def _write_drawn(drawn: Document) -> Document:
    """What is drawn of a program, with flows and copies as columns."""

    def write_columns(rows: list[list[Any]]) -> Document | None:
        return write_runs({str(n): list(column) for n, column in enumerate(zip(*rows, strict=True))})

    return {**drawn, "copies": write_columns(drawn["copies"]), "flows": write_columns(drawn["flows"])}


def _name_plan(bundle: Bundle) -> str:
    where = f"{format_count(len(bundle.devices), 'site')} of {shorten(bundle.machine, 40)}"
    return f"{shorten(bundle.model, MAX_TITLE)} on {where}"


def _describe_layer(bundle: Bundle) -> str | None:
    """Which layer stands for how many in what is drawn of tasks and memory."""
    repetition = bundle.repetition
    if repetition is None:
        return None
    copied = [find_copied(section, repetition.head) for section in repetition.operations]
    names = [shorten(bundle.operations[n].name, MAX_TITLE) for n in (copied[0].first, copied[0].end - 1)]
    gradients = ", and so do those of its gradients and updates" if len(copied) > 1 else ""
    count = len(repetition.copies) + 1
    return f"The layer from {names[0]} to {names[1]} stands for {count} that follow each other{gradients}."


def _compare(bundle: Bundle, against: Bundle, ideal: bool) -> Document:
    """The differences, and of the other plan what is drawn beside this one."""
    machine = read_plan_machine(against)
    timing = time_plan(against, machine.ideal() if ideal else machine)
    differences = compare_plans(bundle, against, ideal=ideal)
    for number, entry in enumerate(differences["operators"]):
        left_out = ("exchange",) if number < MAX_DRAWN_CHANGES else ("exchange", "blocks")
        for side in ("a", "b"):
            if entry[side] is not None:
                entry[side] = {name: value for name, value in entry[side].items() if name not in left_out}
    del differences["tensors"]
    return {
        "differences": differences,
        "trust": {side: describe_trust_apart(differences[side]) for side in "ab"},
        "tasks": _describe_other_tasks(against, timing),
        "memory_bytes": list(against.memory),
    }


def _describe_other_tasks(against: Bundle, timing: Timing) -> Document | None:
    tasks = describe_tasks(against, timing)
    return write_runs(tasks and {name: tasks[name] for name in tasks if name not in ("cause", "bytes", "error")})


def _render(title: str, data: Mapping[str, Any], **more: Any) -> str:
    script, style = _read_static()
    policy = f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'unsafe-inline'; base-uri 'none'"
    return (
        _make_environment()
        .get_template("page.html")
        .render(
            title=title,
            kind=data["kind"],
            version=VERSION,
            policy=policy,
            script=script,
            style=style,
            data=write_script_element("data", data),
            **more,
        )
    )


def render_template(name: str, **values: Any) -> str:
    """A page without a script, from a template of the folder `templates`."""
    _, style = _read_static()
    return _make_environment().get_template(name).render(version=VERSION, style=style, **values)


@functools.cache
def _make_environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates", encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _read_static() -> tuple[str, str]:
    """Our scripts as one, and the styles; neither has anything that could end its element."""
    parts = "".join((FOLDER / "static" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = (FOLDER / "static" / "page.css").read_text(encoding="utf-8")
    return f'"use strict";\n(async () => {{\n{parts}}})();\n', style


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
