"""The figures of a plan are those of its cuts, its tasks and its machine file; a plan with any other is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from click.testing import CliRunner

from einc.cli.root import root
from einc.compiler import compile_model
from einc.errors import InternalError
from einc.machines.load import format_machine, parse_machine
from einc.options import CompileOptions, GivenExchange
from einc.plan_report import read_report
from einc.verification import figures
from einc.verification.figures import verify_figures
from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle
from tests.mutation.plans import CASES, make_plan
from tests.support.plan_reports import change_report
from tests.support.sampling import first

replace = msgspec.structs.replace


@pytest.mark.parametrize("case", first(6, sorted(CASES)))
def test_plans_of_the_compiler_are_accepted(case: str) -> None:
    verify_figures(decode(make_plan(case)))


def change_exchange(bundle: Bundle, name: str, **fields: Any) -> Bundle:
    """The plan with other fields in the exchange of one operation."""
    operations = [
        replace(operation, exchange=replace(operation.exchange, **fields))
        if operation.name == name and operation.exchange
        else operation
        for operation in bundle.operations
    ]
    return replace(bundle, operations=tuple(operations))


def change_first(bundle: Bundle, **fields: Any) -> Bundle:
    return replace(bundle, operations=(replace(bundle.operations[0], **fields), *bundle.operations[1:]))


def everywhere(bundle: Bundle, **fields: Any) -> Bundle:
    operations = [
        operation if operation.exchange is None else replace(operation, exchange=replace(operation.exchange, **fields))
        for operation in bundle.operations
    ]
    return replace(bundle, operations=tuple(operations))


def cost(bundle: Bundle, **more: int) -> Bundle:
    first = bundle.operations[0].cost
    fields = {name: getattr(first, name) + by for name, by in more.items()}
    changed = change_first(bundle, cost=replace(first, **fields))
    return replace(changed, total_cost=bundle.total_cost + sum(more.values()))


def program(bundle: Bundle, old: str, new: str) -> Bundle:
    text = next(
        operation.exchange.program for operation in bundle.operations if operation.name == "y" and operation.exchange
    )
    assert old in text
    return change_exchange(bundle, "y", program=text.replace(old, new))


FALSE: dict[str, tuple[Callable[[Bundle], Bundle], str]] = {
    "a longer time": (lambda b: replace(b, predicted_ms=(b.predicted_ms or 0) * 1.01), "predicted_ms"),
    "bounds of 1 ms": (lambda b: everywhere(b, bound_ms=1.0), "bound_ms|bound_free_ms"),
    "a bound without a proof": (lambda b: change_exchange(b, "y", bound_by=None), "bound_by"),
    "another proof of a bound": (lambda b: change_exchange(b, "y", bound_by="cut {1}: no reason"), "bound_by"),
    "a better bound for any sites": (lambda b: change_exchange(b, "y", bound_free_ms=0.5), "bound_free_ms"),
    "a faster exchange": (lambda b: change_exchange(b, "y", completion_ms=0.001), "completion_ms"),
    "a slower naive exchange": (lambda b: change_exchange(b, "y", naive_ms=0.5), "naive_ms"),
    "a dearer join": (lambda b: cost(b, join=1), "cost.join"),
    "a dearer aggregation": (lambda b: cost(b, aggregation=1), "cost.aggregation"),
    "a dearer repartition": (lambda b: cost(b, repartition=1), "cost.repartition"),
    "a larger arena": (lambda b: replace(b, memory=(b.memory[0] + 64, *b.memory[1:])), r"memory\[0\]"),
    "another precision": (lambda b: change_first(b, precision="f64"), "precision"),
    "another title": (lambda b: change_first(b, title="product"), "title"),
    "an optimum": (lambda b: change_report(replace(b, selector="greedy"), exact=True), "exact"),
    "another machine": (lambda b: replace(b, machine="dgx-h100"), "machine"),
    "another heuristic cost": (lambda b: change_report(b, cut_cost=(read_report(b).cut_cost or 0) + 1), "cut_cost"),
    "an optimum that costs more": (lambda b: change_report(b, cut_cost=b.total_cost - 1), "cut_cost"),
    "a pin of another cut": (lambda b: change_first(b, pin="k/4"), "pin"),
    "a pin of no index": (lambda b: change_first(b, pin="zzz/4"), "h.1"),
    "a faster machine": (lambda b: replace(b, machine_file=b.machine_file.replace("25", "50")), "machine_file|_ms"),
    "a message less": (lambda b: program(b, "X1 @ 0 -> 2\n", ""), "program"),
    "a message more": (lambda b: program(b, "X1 @ 0 -> 2", "X1 @ 0 -> 1, 2"), "naive"),
    "larger messages": (lambda b: program(b, "80 B", "81 B"), "program|_ms"),
}


@pytest.mark.parametrize("fault", sorted(FALSE))
def test_false_figures_are_refused(fault: str) -> None:
    bundle = decode(make_plan("once"))
    change, where = FALSE[fault]
    false = change(bundle)
    assert false != bundle
    with pytest.raises(PlanFault) as caught:
        verify_figures(false)
    assert re.search(where, str(caught.value.where)), caught.value.render()


def chosen_twice(bundle: Bundle) -> Bundle:
    baselines = read_report(bundle).baselines
    return change_report(bundle, baselines=tuple(replace(baseline, chosen=True) for baseline in baselines))


def with_machine(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> Bundle:
    """The plan with another machine file, which is written as the compiler writes it."""
    text = json.loads(bundle.machine_file)
    change(text)
    return replace(bundle, machine_file=format_machine(parse_machine(json.dumps(text), connected=False)))


def shrink(text: dict[str, Any]) -> None:
    text["sites"][2]["memory_bytes"] = 300


HEADERS: dict[str, tuple[str, Callable[[Bundle], Bundle], str, str]] = {
    "blanks in the machine": (
        "once", lambda b: replace(b, machine_file=b.machine_file + " "), "machine_file",
        "it is not written as the compiler writes machines"),
    "more sites than devices": (
        "once", lambda b: with_machine(b, lambda text: text["sites"].append(text["sites"][0])), "machine_file",
        "5 sites, where the plan has 4"),
    "a site without the memory": ("once", lambda b: with_machine(b, shrink), "memory[2]", "the site has 300 bytes"),
    "no schedule": ("once", lambda b: replace(b, schedule="quick"), "schedule", "'quick' is no schedule"),
    "no selector": ("once", lambda b: replace(b, selector="best"), "selector", "'best' is no selector"),
    "a contest that was not": (
        "chain-fastest", lambda b: replace(b, selector="greedy"), "contenders",
        "the selector 'greedy' compares no plans"),
    "two plans that were chosen": (
        "baselines", chosen_twice, "contenders", "more than one plan is said to be the one that was chosen"),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(HEADERS))
def test_false_headers_are_refused(fault: str) -> None:
    case, lie, where, message = HEADERS[fault]
    with pytest.raises(PlanFault) as caught:
        verify_figures(lie(decode(make_plan(case))))
    assert (caught.value.where, caught.value.message) == (where, message)


def test_a_plan_that_costs_more_than_the_heuristic_is_no_optimum() -> None:
    """A random plan that says that nothing costs less."""
    case = CASES["chain"]
    options = CompileOptions(machine="host", devices=4, selector="random", seed=1, schedule="naive")
    bundle = compile_model(case.source, case.file, options).bundle
    assert bundle.total_cost > (read_report(bundle).cut_cost or 0) > 0
    verify_figures(bundle)
    with pytest.raises(PlanFault, match="the cut heuristic finds a plan that costs less"):
        verify_figures(change_report(replace(bundle, selector="eindecomp"), exact=True))


def test_what_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time and the cost of the heuristic are then accepted unseen, and that is among the remarks."""
    bundle = decode(make_plan("chain"))
    cut_cost = read_report(bundle).cut_cost or 0
    false = change_report(replace(bundle, predicted_ms=1.0), cut_cost=cut_cost + 1)
    with pytest.raises(PlanFault, match=r"1\.0 ms"):
        verify_figures(false)
    monkeypatch.setattr(figures, "MAX_EFFORT", 1)
    with pytest.raises(PlanFault, match=f"{cut_cost + 1}, and it should be {cut_cost}"):
        verify_figures(false)
    monkeypatch.setattr(figures, "MAX_OPERATIONS", 1)
    remarks = verify_figures(false)
    assert "`predicted_ms`: the plan is too large to be simulated here" in remarks
    assert "`cut_cost`: the plan is too large for the cut heuristic" in remarks


def test_a_plan_without_a_time_is_accepted() -> None:
    verify_figures(replace(decode(make_plan("chain")), predicted_ms=None))


@pytest.mark.parametrize("report", [b"", b"\0\0\0\x09..."], ids=["none", "another version"])
def test_without_a_report_everything_else_is_verified(report: bytes) -> None:
    bundle = replace(decode(make_plan("once")), report=report)
    assert any(remark.startswith("how the plan was chosen") for remark in verify_figures(bundle))
    with pytest.raises(PlanFault, match=r"1\.0 ms"):
        verify_figures(replace(bundle, predicted_ms=1.0))


def test_an_error_of_the_product_is_no_fault_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bundle: Bundle) -> NoReturn:
        raise InternalError("an assumption does not hold")

    monkeypatch.setattr(figures, "restore_plan", fail)
    with pytest.raises(InternalError, match="an assumption does not hold"):
        verify_figures(decode(make_plan("chain")))


def test_programs_of_others_are_accepted_with_their_times() -> None:
    """A slow program of a person's own, which visits another site on the way."""
    case = CASES["once"]
    original = decode(make_plan("once"))
    text = next(
        operation.exchange.program for operation in original.operations if operation.name == "y" and operation.exchange
    )
    slower = text.replace("X1 @ 0 -> 2", "X1 @ 0 -> 1\nX1 @ 1 -> 2") if "X1 @ 1" not in text else text
    options = case.compile_options()
    chosen = CompileOptions(
        machine=options.machine, devices=options.devices, selector="eindecomp", input_placement="once",
        exchanges=(GivenExchange("y", slower, "own.exprog"),),
    )  # fmt: skip
    bundle = compile_model(case.source, case.file, chosen).bundle
    assert next(operation.exchange for operation in bundle.operations if operation.name == "y").author == "user"
    verify_figures(bundle)


def test_plans_with_less_memory_are_accepted() -> None:
    case = CASES["chain"]
    options = CompileOptions(machine="dgx-a100", devices=2, memory=1 << 20)
    bundle = compile_model(case.source, case.file, options).bundle
    verify_figures(bundle)
    for false in (1 << 19, 1 << 21):
        with pytest.raises(PlanFault, match="1048576"):
            verify_figures(change_report(bundle, memory_limit=false))


def test_a_bound_without_a_proof_is_explained(tmp_path: Path) -> None:
    """`explain` proves the bound itself then."""
    plan = tmp_path / "plan.bin"
    plan.write_bytes(encode(change_exchange(decode(make_plan("once")), "y", bound_by=None)))
    result = CliRunner().invoke(root, ["explain", str(plan)])
    assert result.exit_code == 0, result.exception
    assert "no program takes less than 0.004 ms: cut {2, 3}" in result.output
