"""Proposers asked about the exchanges of a plan: each exchange once, good programs taken, and no harm from others."""

from __future__ import annotations

import sys
import time

import pytest

from einc.errors import ProgramError
from einc.exchange.language.printer import print_program
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.exchange.synthesis.proposers import TextProposer
from einc.exchange.synthesis.sources import CommandProposer
from tests.support.layered_model import compile_layers, exchanges_of


class Searcher:
    """Proposes what the compiler's own search finds, with pieces and waits."""

    def __init__(self):
        self.requests = []

    def propose(self, request):
        if request.round:
            return None
        self.requests.append(request)
        options = SynthesisOptions(iterations=0, max_actions=60)
        return print_program(synthesize(request.preamble, request.machine, options).program)


def test_every_kind_of_exchange_is_offered_once_and_faster_programs_are_taken():
    plain, searcher = compile_layers(), Searcher()
    compiled = compile_layers(searcher)
    used, before = exchanges_of(compiled), exchanges_of(plain)
    assert len(used) == 5
    assert len(searcher.requests) == 2  # the reduce-scatters are equal, and the gathers
    assert {exchange.author for exchange in used.values()} == {"proposer"}
    for name, used_exchange in used.items():
        assert used_exchange.completion_ms < before[name].completion_ms == used_exchange.naive_ms
        assert used_exchange.splits
    assert compiled.bundle.predicted_ms < plain.bundle.predicted_ms
    assert [line.partition(" proposal")[0] for line in compiled.proposals] == ["x.0:", "layer.1.h.1:"]
    assert all(line.endswith("the best so far") for line in compiled.proposals)
    assert [request.best_ms for request in searcher.requests] == [
        before[n].completion_ms for n in ("x.0", "layer.1.h.1")
    ]


class Fixed:
    """Changes each preamble to a text, as it is told to."""

    def __init__(self, change):
        self.change = change
        self.requests = 0

    def propose(self, request):
        if request.round:
            return None
        self.requests += 1
        return self.change(print_program(request.preamble), print_program(request.best))


def refuse(preamble, best):
    raise ProgramError("out of order")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda preamble, best: "I would rather not.", "refused"),
        (lambda preamble, best: preamble, "not valid"),
        (lambda preamble, best: best, " ms"),
        (lambda preamble, best: best + "X1+X2 @ 0 -> 1\n", ""),  # parts of different blocks in one action
        (lambda preamble, best: best.replace("960 B", "1 B"), "another preamble"),
        (lambda preamble, best: best.replace("S1 {0} S2 {1}", "S1 {1} S2 {0}"), "changes the partition"),
        (refuse, "out of order"),
    ],
)
def test_other_proposals_change_no_byte_of_the_plan(change, words):
    compiled = compile_layers(Fixed(change))
    assert compiled.bundle == compile_layers().bundle
    assert len(compiled.proposals) >= 2
    assert words in compiled.proposals[0]


def test_who_fails_twice_is_not_asked_again():
    failing = Fixed(refuse)
    compiled = compile_layers(failing, TextProposer("no program"), selector="random", seed=1)  # layers differ
    kinds = {line.partition(":")[0] for line in compiled.proposals}
    assert failing.requests == 2 < len(kinds)
    assert any("not asked any more" in line for line in compiled.proposals)


def test_the_time_of_proposers_is_part_of_the_limit():
    sleeper = CommandProposer((sys.executable, "-c", "import time; time.sleep(60)"))
    begin = time.monotonic()
    compiled = compile_layers(sleeper, time_limit=1.0, schedule="synthesized")
    assert time.monotonic() - begin < 20  # it takes 2 s; nobody waits for one who sleeps
    assert {exchange.author for exchange in exchanges_of(compiled).values()} == {"compiler"}
    assert any(words in compiled.proposals[0] for words in ("took longer than", "no time is left"))
