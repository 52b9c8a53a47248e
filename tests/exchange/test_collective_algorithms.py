"""Algorithms of MSCCL and MSCCL++: valid ones are called valid, published bugs are caught, formats lose nothing."""

from __future__ import annotations

import json
import random

import pytest

from einc.errors import ProgramError
from einc.exchange.collectives.msccl_xml import read_msccl_xml, write_msccl_xml
from einc.exchange.collectives.mscclpp_json import read_mscclpp_json
from einc.exchange.collectives.mscclpp_writing import write_mscclpp_json
from einc.exchange.collectives.translating import convert_algorithm, convert_program
from einc.exchange.collectives.verifying import verify_algorithm
from einc.exchange.language.checker import check
from einc.exchange.language.program import Action, Holding, Program, Requirement
from einc.exchange.language.resolve import read_program
from tests.support.collective_cases import (
    Sketch,
    all_pairs_allreduce,
    all_pairs_reduce_scatter,
    chain_broadcast,
    direct_alltoall,
    draw_valid,
    hierarchical_allreduce,
    mutate,
    ring_allgather,
    ring_allreduce,
    run_with_numbers,
)
from tests.support.published_bugs import (
    PLAN_BUGS,
    PROGRAM_BUGS,
    XML_BUGS,
    PublishedBug,
    make_plan,
    op,
    put_allgather,
    read_allreduce,
    staged,
)


def faults_of(text: str) -> list[str]:
    read = read_msccl_xml if text.startswith("<") else read_mscclpp_json
    return [fault.message for fault in verify_algorithm(read(text, "test")).faults]


def random_tree_program(draw: random.Random) -> Program:
    """An allreduce of 2 to 6 sites in which every chunk is summed along one random tree and spread along another."""
    sites, chunks = draw.randint(2, 6), draw.randint(1, 4)
    names = [[f"c{chunk}_r{site}" for site in range(sites)] for chunk in range(chunks)]
    actions = []
    for chunk in range(chunks):
        order = draw.sample(range(sites), sites)
        gathered = {site: {names[chunk][site]} for site in order}
        for position in range(sites - 1, 0, -1):
            site, above = order[position], order[draw.randrange(position)]
            actions.append(Action(tuple(sorted(gathered[site])), site, (above,)))
            gathered[above] |= gathered[site]
        combined = tuple(sorted(names[chunk]))
        known = [order[0]]
        for site in draw.sample(order[1:], sites - 1):
            actions.append(Action(combined, draw.choice(known), (site,)))
            known.append(site)
    draw.shuffle(actions)
    holdings = tuple(Holding((names[c][site],), (site,), 10**6) for c in range(chunks) for site in range(sites))
    outs = tuple(Requirement(tuple(sorted(row)), tuple(range(sites))) for row in names)
    return Program(tuple(range(sites)), (), holdings, outs, tuple(sorted(actions)))


def judge_valid(seeds: range) -> None:
    """Algorithms that are right in a random order of their blocks are called valid, and become valid programs."""
    for seed in seeds:
        text = draw_valid(random.Random(seed))
        assert run_with_numbers(text, seed) == "right", seed
        assert faults_of(text) == [], seed
        program = random_tree_program(random.Random(seed))
        assert check(program).valid, seed
        written = write_msccl_xml(convert_program(program))
        assert run_with_numbers(written, seed) == "right", seed
        assert faults_of(written) == [], seed
        assert faults_of(write_mscclpp_json(convert_program(program, one_block=True))) == [], seed


def test_valid_algorithms_are_called_valid() -> None:
    judge_valid(range(12))


@pytest.mark.slow
def test_a_thousand_valid_algorithms_are_called_valid() -> None:
    judge_valid(range(12, 1012))


def judge_mutants(seeds: range) -> tuple[int, int]:
    """No changed algorithm that is called valid is ever wrong; how many are called faulty, and how many are."""
    called, wrong = 0, 0
    for seed in seeds:
        draw = random.Random(seed)
        text = mutate(draw_valid(draw), draw)
        try:
            faults = faults_of(text)
        except ProgramError:
            continue
        results = {run_with_numbers(text, order) for order in range(8)}
        assert faults or results == {"right"}, seed
        called += bool(faults)
        wrong += results != {"right"}
    return called, wrong


def test_changed_algorithms_are_called_valid_only_where_they_are_right() -> None:
    called, wrong = judge_mutants(range(30))
    assert wrong > 5
    assert wrong <= called <= wrong + 4, "faults that no order of eight shows are races, or counts of chunks"


@pytest.mark.slow
def test_thousands_of_changed_algorithms_are_called_valid_only_where_they_are_right() -> None:
    called, wrong = judge_mutants(range(30, 5030))
    assert wrong <= called <= 1.15 * wrong


@pytest.mark.parametrize("bug", XML_BUGS, ids=lambda bug: bug.name)
def test_published_bugs_are_caught_in_algorithms(bug: PublishedBug) -> None:
    """What is rebuilt is a bug: numbers say so, in all orders of the blocks or, for races, in some."""
    assert any(bug.fault in message for message in faults_of(bug.text)), faults_of(bug.text)
    runs = (run_with_numbers(bug.text, seed) for seed in range(200 if bug.effect == "race" else 3))
    assert "wrong" in runs if bug.effect == "race" else set(runs) == {bug.effect}


@pytest.mark.parametrize("bug", PLAN_BUGS, ids=lambda bug: bug.name)
def test_published_bugs_are_caught_in_execution_plans(bug: PublishedBug) -> None:
    assert any(bug.fault in message for message in faults_of(bug.text)), faults_of(bug.text)


@pytest.mark.parametrize("bug", PROGRAM_BUGS, ids=lambda bug: bug.name)
def test_published_bugs_are_caught_in_programs(bug: PublishedBug) -> None:
    messages = [fault.message for fault in check(read_program(bug.text)).faults]
    assert any(bug.fault in message for message in messages), messages


def test_execution_plans_without_these_bugs_are_valid() -> None:
    assert faults_of(make_plan(put_allgather())) == []
    assert faults_of(make_plan(read_allreduce(), kind="allreduce")) == []
    assert faults_of(make_plan(staged(True), scratch=1)) == []
    barrier = [op("barrier", barrier_id=0, num_threadblocks=2)]
    apart = [[[*first[:-1], *barrier], [*barrier, second[-1]]] for first, second in staged(True)]
    assert faults_of(make_plan(apart, scratch=1)) == []
    lonely = [[first, [barrier[0], *second]] for first, second in staged(True)]
    assert "1 of 2 thread blocks come to its barrier" in faults_of(make_plan(lonely, scratch=1))[0]


@pytest.mark.parametrize(
    "algorithm",
    [ring_allreduce(3), ring_allgather(4, 2), all_pairs_reduce_scatter(3, 2), all_pairs_allreduce(4),
     chain_broadcast(3, 2), direct_alltoall(3, 2), hierarchical_allreduce(2, 3)],
    ids=lambda algorithm: f"{algorithm.coll}-{algorithm.ranks}",
)  # fmt: skip
def test_programs_survive_both_ways_in_both_formats(algorithm) -> None:
    program = convert_algorithm(read_msccl_xml(algorithm.text(), "test"), 4096)
    assert check(program).valid
    assert {holding.size for holding in program.holdings} == {4096}
    xml = write_msccl_xml(convert_program(program))
    assert run_with_numbers(xml, 1) == "right"
    assert convert_algorithm(read_msccl_xml(xml, "test"), 4096) == program
    plan = write_mscclpp_json(convert_program(program, one_block=True))
    assert convert_algorithm(read_mscclpp_json(plan, "test"), 4096) == program


def test_what_moves_is_what_the_algorithm_moves() -> None:
    """A ring of n sends every chunk n - 1 times to be summed, and n - 1 times to be known."""
    for n in (2, 3, 5):
        program = convert_algorithm(read_msccl_xml(ring_allreduce(n).text(), "test"))
        assert len(program.actions) == n * 2 * (n - 1)
        sums = [len(action.aggregate) for action in program.actions]
        assert sorted(sums) == sorted([*range(1, n)] * n + [n] * n * (n - 1))
    gathered = convert_algorithm(read_msccl_xml(ring_allgather(3).text(), "test"))
    assert {(a.aggregate, a.source, a.destinations) for a in gathered.actions if a.aggregate == ("c0_r0",)} == {
        (("c0_r0",), 0, (1,)), (("c0_r0",), 1, (2,))
    }  # fmt: skip


def test_writes_without_order_are_a_race_even_of_equal_values() -> None:
    sketch = Sketch("broadcast", 2, 1)
    sketch.step(0, (-1, -1, 0), "cpy", ("i", 0), ("o", 0))
    for channel in range(2):
        sketch.step(0, (1, -1, channel), "s", ("i", 0), ("o", 0))
        sketch.step(1, (-1, 0, channel), "r", ("i", 0), ("o", 0))
    (fault,) = faults_of(sketch.text())
    assert fault.startswith("race: gpu 1, thread block 1, step 0 (r) writes o[0] of gpu 1")


def test_a_message_that_nobody_takes_is_a_fault() -> None:
    algorithm = ring_allgather(3)
    algorithm.step(2, (0, 1, 0), "s", ("o", 0), ("o", 0))
    (fault,) = faults_of(algorithm.text())
    assert fault.startswith("nobody takes what gpu 2, thread block 0, step 4 (s) sends")


def test_copies_that_arrive_twice_have_places_of_their_own() -> None:
    text = "IN: A@0\nOUT: A@0,1,2\nA@0->1; A@0->2; A@1->2; A@2->1"
    written = write_msccl_xml(convert_program(read_program(text)))
    assert faults_of(written) == []
    assert run_with_numbers(written, 3) == "right"


def test_a_sum_that_is_sent_to_several_is_formed_once() -> None:
    program = convert_algorithm(read_msccl_xml(all_pairs_allreduce(4).text(), "test"))
    sums = [action for action in program.actions if len(action.aggregate) == 4]
    assert [(action.source, action.destinations) for action in sums] == [
        (rank, tuple(peer for peer in range(4) if peer != rank)) for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("IN: A@0; B@1\nOUT: A+B@0\nB@1->0; A+B@0", "divided evenly"),
        ("IN: A@0; B@1; C@2\nOUT: A+B@0; C@0\nB@1->0; A+B@0; C@2->0", "no known collective"),
        ("IN: A@0; B@1\nOUT: A@0,1\nA@0->1", "no OUT takes B"),
        ("IN: A@0,1; B@1\nOUT: A@0,1; B@0,1\nB@1->0", "at several sites"),
        ("IN: A+B@0\nOUT: A+B@0,1\nA+B@0->1", "combined already"),
        ("IN: A@0 (size: 2 B); B@1 (size: 1 B)\nOUT: A@0,1; B@0,1\nA@0->1; B@1->0", "several sizes"),
        ("IN: A@0; B@1\nOUT: A@0,1; B@0,1\nA@0->1; B@1->0 after (A@0->1)", "has waits"),
        ("IN: A@0; B@1; C@1\nOUT: A@0,1; B@0,1; C@0,1\nA@0->1; B@1->0; C@1->0", "several sizes"),
        ("IN: A@0; B@1\nOUT: A@0,1; B@0,1\nA@0->1", "not valid"),
    ],
)
def test_what_cannot_be_exported_is_refused(program: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        convert_program(read_program(program))


ALGO = '<algo name="x" nchunksperloop="2" ngpus="1" coll="allreduce" inplace="1">'
BLOCK = ALGO + '<gpu id="0"><tb id="0">'
END = "</tb></gpu></algo>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<algo", "not well-formed XML"),
        ("", "not well-formed XML"),
        ('<!DOCTYPE algo [<!ENTITY a "b">]><algo/>', "document type"),
        ('<?xml version="1.0"?>\n<!DOCTYPE algo SYSTEM "file:///etc/passwd"><algo/>', "document type"),
        ("<a/>", "not known at the top"),
        ("<algo><algo/></algo>", "not known inside of <algo>"),
        (ALGO + "<tb/></algo>", "not known inside of <algo>"),
        (ALGO + "</algo>", "gpu 0 of 1 is not there"),
        (ALGO + '<gpu id="0"/><gpu id="0"/></algo>', "stands twice"),
        (ALGO + '<gpu id="1"/></algo>', "not a number from 0 to 0"),
        (ALGO.replace("allreduce", "custom") + '<gpu id="0"/></algo>', "'custom' promises is not known"),
        (ALGO.replace('"2"', '"1e9"') + '<gpu id="0"/></algo>', "not a number"),
        (ALGO.replace('ngpus="1"', 'ngpus="3"').replace("allreduce", "alltoall") + "</algo>", "cannot be divided"),
        (BLOCK + '<step s="1" type="nop"/>' + END, "step 0 should"),
        (BLOCK + '<step s="0" type="x"/>' + END, "'x' is not known"),
        (BLOCK + '<step s="0" type="s"/>' + END, "with send=-1"),
        (BLOCK + '<step s="0" type="rrc"/>' + END, "with recv=-1"),
        (BLOCK + '<step s="0" type="nop" depid="0" deps="0"/>' + END, "its own thread block"),
        (BLOCK + '<step s="0" type="cpy" srcbuf="x"/>' + END, "srcbuf is 'x'"),
        (BLOCK + '<step s="0" type="cpy" srcbuf="i" srcoff="1" cnt="2" dstbuf="i" dstoff="0"/>' + END,
         r"i\[1:3\] is outside"),
        (BLOCK + '<step s="0" type="cpy" srcbuf="i" srcoff="1" dstbuf="s" dstoff="0"/>' + END, "which has 0 chunks"),
    ],
)  # fmt: skip
def test_hostile_algorithms_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        read_msccl_xml(text, "hostile.xml")
    assert str(caught.value.where).startswith("hostile.xml")


def test_an_algorithm_that_is_too_large_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einc.exchange.collectives.msccl_xml.MAX_ALGORITHM_STEPS", 50)
    steps = "".join(f'<step s="{k}" type="nop"/>' for k in range(51))
    with pytest.raises(ProgramError, match="more than 50 steps"):
        read_msccl_xml(f'{ALGO}<gpu id="0"><tb id="0">{steps}</tb></gpu></algo>', "x")
    with pytest.raises(ProgramError, match="too many"):
        read_msccl_xml(ALGO.replace('ngpus="1"', 'ngpus="1024"').replace('"2"', '"1000000"') + "</algo>", "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("gpus"), "'gpus' should be a list"),
        (lambda d: d.update(gpus=[]), "0 GPUs"),
        (lambda d: d.update(collective="custom"), "'custom' promises"),
        (lambda d: d["gpus"][0].update(id=1), "gpu 1 stands where gpu 0"),
        (lambda d: d["gpus"][1].update(output_chunks=4), "and 2 on gpu 0"),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0].update(name="ppkt"), "packets"),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0].update(tbg_info={}), "'tbg_size' should be"),
        (
            lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0].update(tbg_info={"tb_id": 2, "tbg_size": 2}),
            "a group of 2",
        ),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0].update(name="teleport"), "'teleport' is not known"),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0]["src_buff"][0].update(index=2), "outside of the buffer"),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0]["src_buff"][0].update(index=True), "'index' should be"),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][0]["dst_buff"][0].update(buffer_id=9), "no remote buffer 9"),
        (lambda d: d["gpus"][0]["threadblocks"][0]["ops"][2].update(channel_ids=[7]), "no channel 7"),
        (lambda d: d["gpus"][0]["channels"][0].update(connected_to=[5]), "no gpu 5"),
        (lambda d: d["gpus"][0]["channels"][0].update(channel_type="switch", buffer_type="i"), "'rank_groups'"),
        (lambda d: d["gpus"][0]["semaphores"][0].update(init_value=-1), "begins with -1"),
    ],
)
def test_hostile_execution_plans_are_refused_with_their_place(change, message: str) -> None:
    document = json.loads(make_plan(put_allgather()))
    change(document)
    with pytest.raises(ProgramError, match=message) as caught:
        read_mscclpp_json(json.dumps(document), "hostile.json")
    assert "hostile.json" in str(caught.value.where)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"gpus": [1]}', '{"gpus": 1}', "[" * 100_000])
def test_other_documents_are_no_execution_plans(text: str) -> None:
    with pytest.raises(ProgramError):
        read_mscclpp_json(text, "x")
