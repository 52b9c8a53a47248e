"""Rewrites keep validity, do what they say, and reach every valid program (Theorem 1)."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.closure import compute_closure
from einc.exchange.language.program import Action
from einc.exchange.language.resolve import read_program
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import simulate
from einc.exchange.synthesis.rewrites import REWRITES, improve_by_rewrites
from einc.machines.load import load_machine
from tests.support.exchange_oracle import CUBE_MESH, SWAP, machines_and_programs
from tests.support.property_examples import examples
from tests.support.theorem_one import delete, guarded, insert, path_between

MESH = load_machine("dgx-v100").ideal()
SWITCH = load_machine("dgx-h100").ideal()
BOTH = "IN: A @ 0; B @ 0\nOUT: A+B @ 1"
ALWAYS = ("multicast fission", "multicast fusion", "relay introduction")


def read(text, machine=SWITCH):
    return read_program(text, "p", machine)


def bodies(name, text, machine=SWITCH):
    program = read(text, machine)
    rewritten = [guarded(candidate, machine) for candidate in REWRITES[name](program, machine)]
    return [set(candidate.actions) for candidate in rewritten if candidate is not None]


def body(text, preamble, machine=SWITCH):
    return set(read(preamble + "\n" + text, machine).actions)


@pytest.mark.parametrize(
    ("name", "preamble", "before", "after"),
    [
        ("multicast fission", "IN: A @ 0\nOUT: A @ 1, 2", "A @ 0 -> 1, 2", "A @ 0 -> 1; A @ 0 -> 2"),
        ("multicast fusion", "IN: A @ 0\nOUT: A @ 1, 2", "A @ 0 -> 1; A @ 0 -> 2", "A @ 0 -> 1, 2"),
        ("relay introduction", "IN: A @ 0\nOUT: A @ 1", "A @ 0 -> 1", "A @ 0 -> 2 -> 1"),
        ("relay elimination", "IN: A @ 0\nOUT: A @ 1", "A @ 0 -> 2 -> 1", "A @ 0 -> 1"),
        ("aggregation pushdown", BOTH, "A @ 0 -> 1; B @ 0 -> 1; A+B @ 1", "A+B @ 0 -> 1; A+B @ 1"),
        ("aggregation pullup", BOTH, "A+B @ 0 -> 1", "A @ 0 -> 1; B @ 0 -> 1; A+B @ 1"),
        ("source substitution", "IN: A @ 0, 3\nOUT: A @ 1", "A @ 0 -> 1", "A @ 3 -> 1"),
        ("delete", "IN: A @ 0\nOUT: A @ 1", "A @ 0 -> 1; A @ 0 -> 2", "A @ 0 -> 1"),
    ],
)
def test_each_rewrite_by_example(name, preamble, before, after):
    assert body(after, preamble) in bodies(name, preamble + "\n" + before)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("relay elimination", "IN: A @ 0\nOUT: A @ 1, 2\nA @ 0 -> 2 -> 1"),  # A is required at the relay itself
        ("aggregation pushdown", "IN: A @ 0; B @ 0\nOUT: A+B @ 1; A @ 1\nA @ 0 -> 1; B @ 0 -> 1; A+B @ 1"),
        ("source substitution", "IN: A @ 0\nOUT: A @ 1, 2\nA @ 0 -> 1; A @ 1 -> 2"),
        ("delete", "IN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1"),
    ],
)
def test_guards_refuse_what_somebody_needs(name, text):
    program = read(text)
    refused = [c for c in REWRITES[name](program, SWITCH) if guarded(c, SWITCH) is None]
    assert refused


@examples(120)
@given(machines_and_programs(waits=False), st.data())
def test_rewrites_keep_validity(case, data):
    machine, program = case
    name = data.draw(st.sampled_from(sorted(REWRITES)))
    for candidate in REWRITES[name](program, machine):
        assert candidate.holdings == program.holdings
        assert candidate.requirements == program.requirements
        kept = guarded(candidate, machine)
        if name in ALWAYS:
            assert kept is not None
        if name in ("multicast fission", "multicast fusion"):
            assert compute_closure(candidate) == compute_closure(program)
        if name == "relay introduction":
            assert compute_closure(candidate) >= compute_closure(program)
        if kept is not None:
            simulate(kept, machine)


@examples(60)
@given(machines_and_programs(), st.data())
def test_what_passes_the_guard_runs_with_its_waits_too(case, data):
    machine, program = case
    name = data.draw(st.sampled_from(sorted(REWRITES)))
    for candidate in list(REWRITES[name](program, machine))[:20]:
        if guarded(candidate, machine) is not None:
            simulate(candidate, machine)


@examples(60)
@given(machines_and_programs(waits=False))
def test_insertions_and_deletions_reach_every_program(case):
    machine, program = case
    try:
        naive = build_naive_body(program, machine)
    except ProgramError:
        return
    for first, second in ((naive, program), (program, naive)):
        steps = list(path_between(first, second))
        assert len(steps) == len(set(first.actions) ^ set(second.actions))
        assert all(check(step, machine).valid for step in steps)
        assert set((steps[-1] if steps else first).actions) == set(second.actions)


@examples(40)
@given(machines_and_programs(waits=False), st.data())
def test_they_reach_any_program_from_any_other(case, data):
    machine, program = case
    programs = [program, program]
    for k in range(2):  # two walks of rewrites and insertions lead somewhere else
        for _ in range(data.draw(st.integers(0, 4))):
            name = data.draw(st.sampled_from(sorted(REWRITES)))
            near = [guarded(candidate, machine) for candidate in list(REWRITES[name](programs[k], machine))[:6]]
            near = [candidate for candidate in near if candidate is not None]
            if near:
                programs[k] = data.draw(st.sampled_from(near))
    for first, second in (programs, programs[::-1]):
        last = first
        for step in path_between(first, second):
            assert len(set(step.actions) ^ set(last.actions)) == 1
            assert check(step, machine).valid
            last = step
        assert set(last.actions) == set(second.actions)


@pytest.mark.parametrize(
    "preamble",
    [
        "IN: A @ 0; B @ 1\nOUT: A+B @ 0, 1",
        "IN: A @ 0; B @ 0\nOUT: A+B @ 1; A @ 1",
        "IN: A @ 0, 1\nOUT: A @ 2",
        "IN: A+B @ 0; A @ 1; B @ 1\nOUT: A+B @ 1",
    ],
)
def test_all_valid_bodies_hang_together(preamble):
    """Theorem 1 by exhaustion: single insertions and deletions, through valid bodies only, connect all of them."""
    program = read(preamble)
    sites = sorted(
        {site for holding in program.holdings for site in holding.sites}
        | {site for requirement in program.requirements for site in requirement.targets}
    )
    atoms = sorted({atom for holding in program.holdings for atom in holding.aggregate})
    names = [(atom,) for atom in atoms] + [tuple(atoms)] * (len(atoms) > 1)
    possible = [Action(name, site) for name in names if len(name) > 1 for site in sites]
    possible += [Action(name, s, (d,)) for name in names for s in sites for d in sites if s != d]
    valid = {
        chosen
        for bits in range(1 << len(possible))
        if check(dataclasses.replace(program, actions=(chosen := _chosen(possible, bits)))).valid
    }
    assert len(valid) > 10
    start = min(valid)
    reached, border = {start}, [start]
    while border:
        now = dataclasses.replace(program, actions=border.pop())
        near = [insert(now, action) for action in possible if action not in now.actions]
        near += [delete(now, action) for action in now.actions]
        for candidate in near:
            if candidate is not None and (body := tuple(sorted(candidate.actions))) not in reached:
                reached.add(body)
                border.append(body)
    assert reached == valid


def _chosen(actions, bits):
    return tuple(sorted(action for k, action in enumerate(actions) if bits >> k & 1))


def test_from_naive_to_the_papers_cube_mesh_program_and_back():
    program = read(CUBE_MESH, MESH)
    naive = build_naive_body(program, MESH)
    *_, last = path_between(naive, program)
    assert set(last.actions) == set(program.actions)
    *_, back = path_between(program, naive)
    assert set(back.actions) == set(naive.actions)


def test_insert_and_delete_are_guarded():
    program = read(SWAP)
    assert insert(program, Action(("A",), 5, (1,))) is None
    assert insert(program, Action(("A", "B"), 1, (5,))) is not None
    assert delete(program, program.actions[0], SWITCH) is None
    longer = insert(program, Action(("A", "B"), 1, (5,)))
    assert longer is not None
    assert delete(longer, Action(("A", "B"), 1, (5,)), SWITCH) == program


def test_local_search_leaves_the_bridge():
    naive = build_naive_body(read("IN: A @ 0\nOUT: A @ 4, 5, 6, 7", MESH), MESH)
    before = simulate(naive, MESH).completion_ms
    improved = list(improve_by_rewrites(naive, MESH, 0, 300, lambda: False))
    times = [simulate(candidate, MESH).completion_ms for candidate in improved]
    assert times == sorted(times, reverse=True)
    assert times[-1] < before / 3
    assert all(check(candidate, MESH).valid for candidate in improved)
    assert improved == list(improve_by_rewrites(naive, MESH, 0, 300, lambda: False))
    assert dataclasses.replace(improved[-1], actions=()) == dataclasses.replace(naive, actions=())
