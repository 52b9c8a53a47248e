"""Inputs that fuzzing has found worth keeping are accepted or refused as the contract says; and fuzzing finds bugs."""

import json
import random

import pytest

from einc_runtime.errors import PlanFault, ReportedError, RuntimeFault
from tests.fuzz import corpus
from tests.fuzz.mutation import mutate_bytes, mutate_text, mutate_tree
from tests.fuzz.targets import TARGETS, BrokenContract, Target, accepts

QUICK = ("plan", "plan-file", "proof", "npy", "npz", "safetensors", "machine")
"""The other targets take milliseconds for each input: of them, the suite replays a part."""


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_kept_keeps_the_contract(name):
    target = TARGETS[name]
    seeds, kept = target.seeds(), corpus.list_kept(target)
    for data in seeds[: None if name in QUICK else 1]:
        assert accepts(target, data)
    for path in kept[:: 1 if name in QUICK else 12]:
        accepts(target, path.read_bytes())
    assert all(path.name == corpus.name_of(path.read_bytes()) for path in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in QUICK])
def test_all_that_was_kept_keeps_the_contract(name):
    for data in corpus.read_corpus(TARGETS[name]):
        accepts(TARGETS[name], data)


def test_the_corpus_is_small_and_its_figures_are_told():
    kept = [path for target in TARGETS.values() for path in corpus.list_kept(target)]
    assert sum(path.stat().st_size for path in kept) <= corpus.MAX_CORPUS_BYTES
    assert {path.parent.name for path in corpus.FOLDER.glob("*/*")} <= TARGETS.keys()
    counts = json.loads(corpus.COUNTS.read_text())
    assert counts.keys() <= TARGETS.keys()
    assert all(0 <= figures["accepted"] <= figures["inputs"] for figures in counts.values())


def read_carelessly(data):
    """A reader with three bugs, which a file of two numbers and a text may reach."""
    if data[:4] != b"EIN:":
        raise PlanFault("no mark")
    first, _, remainder = data[4:].partition(b",")
    try:
        size = int(first)
    except ValueError:
        raise PlanFault("no number") from None
    if size == 2:
        raise RuntimeFault("two")  # a bug by its exit code
    if size > 5:
        raise ReportedError("")  # nothing is said
    return remainder[size]  # IndexError


@pytest.mark.parametrize("bug", ["IndexError", "RuntimeFault", "ReportedError"])
def test_a_careless_reader_is_found(bug):
    target = Target("careless", lambda: [b"EIN:3,abcdef"], mutate_bytes, read_carelessly)
    rng, seeds = random.Random(1), target.seeds()
    assert accepts(target, seeds[0])
    for _ in range(3000):
        try:
            accepts(target, target.mutate(seeds[0], rng, seeds))
        except BrokenContract as error:
            if bug in str(error):
                return
    pytest.fail("not found")


def test_a_minimal_corpus_takes_the_steps_of_all():
    target = TARGETS["npy"]
    rng, seeds = random.Random(2), target.seeds()
    inputs = [target.mutate(rng.choice(seeds), rng, seeds) for _ in range(60)]
    kept = corpus.minimize(target, inputs)
    assert 0 < len(kept) < len(inputs)
    every = [corpus.find_steps(target, data) for data in (*inputs, *seeds)]
    assert set().union(*every) == set().union(*(corpus.find_steps(target, data) for data in (*kept, *seeds)))


def test_mutations_follow_from_their_seed_and_share_no_parts():
    tree = {"a": [1, 2, {"b": [3.5, "x"]}], "c": {"d": True}}
    seen = set()
    for seed in range(300):
        errors = []
        for _ in range(2):
            copy = json.loads(json.dumps(tree))
            mutate_tree(copy, random.Random(seed), [tree])
            errors.append(repr(copy))
        assert errors[0] == errors[1]
        seen.add(errors[0])
        assert mutate_text("a b(c)", random.Random(seed), ["x y"]) == mutate_text(
            "a b(c)", random.Random(seed), ["x y"]
        )
    assert len(seen) > 150
    assert tree == {"a": [1, 2, {"b": [3.5, "x"]}], "c": {"d": True}}
