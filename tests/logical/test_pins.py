"""Cuts that a person names: which operators get them, what they leave to the optimizer, and what is refused."""

from __future__ import annotations

from itertools import product

import pytest

from einc.errors import UsageError
from einc.frontend import build as build_graph
from einc.graph.fuse import fuse
from einc.logical.candidates import enumerate_candidates
from einc.logical.optimize import COST_SELECTORS, optimize
from einc.logical.pins import PinnedOffers, parse_pin, parse_pin_file
from einc.logical.problem import build_problem
from tests.support.compiled_plans import MODELS

MODEL = """model two
dim n = 12
dim d = 6
dim f = 10
input x : f32[n, d]
block layer(x, i) {
    weight w : f32[f, d]
    weight v : f32[d, f]
    up[n, f] = x[n, d] * w[f, d]
    act = relu(up)
    down[n, d] = act[n, f] * v[d, f]
    return down
}
repeat 2 as i { x = layer(x, i) }
weight z : f32[d, f]
y = matmul(x, z)
output y
"""


def read():
    return fuse(build_graph(MODEL, "model.ein", (), None, None))


def pin_all(*texts):
    return [parse_pin(text) for text in texts]


def describe(candidate, node):
    counts = zip(node.operator.indices, map(len, candidate.intervals), strict=True)
    cut = {index.name: count for index, count in counts if count > 1}
    return cut | ({"replicas": candidate.replicas} if candidate.replicas > 1 else {})


def cuts(plan):
    choices = zip(plan.graph.nodes, plan.choices, strict=True)
    return {node.name: describe(choice.candidate, node) for node, choice in choices}


@pytest.mark.parametrize("selector", COST_SELECTORS)
def test_every_selector_keeps_to_pins(selector):
    pins = pin_all("layer.*.up=f/2,n/2", "layer.0.act = n/2 , f/2", "layer.1.act=whole", "y=replicated")
    chosen = cuts(optimize(read(), 4, selector, pins=pins))
    assert chosen["layer.0.up"] == chosen["layer.1.up"] == chosen["layer.0.act"] == {"n": 2, "f": 2}
    assert chosen["layer.1.act"] == {}
    assert chosen["y"] == {"replicas": 4}


def test_the_rest_is_optimized_around_pins():
    """The cheapest of all plans that are cut as the pins say, by enumeration."""
    graph = read()
    pinned = {"layer.0.down": {"f": 4}, "layer.1.up": {"n": 2, "f": 2}}
    pins = pin_all("layer.0.down=f/4", "*.1.up=n/2,f/2")
    everything = build_problem(graph, 4)
    allowed = [
        [
            c
            for c, option in enumerate(options)
            if describe(option, node) == pinned.get(node.name, describe(option, node))
        ]
        for node, options in zip(graph.nodes, everything.candidates, strict=True)
    ]
    best = min(map(everything.cost, product(*allowed)))
    free, plan = optimize(graph, 4), optimize(graph, 4, pins=pins)
    assert plan.exact
    assert plan.total_cost == best > free.total_cost
    chosen = cuts(plan)
    assert {name: chosen[name] for name in pinned} == pinned


def test_an_open_pin_leaves_the_other_indices_open():
    graph, pins = read(), pin_all("layer.1.down=d/2,...")
    node = next(node for node in graph.nodes if node.name == "layer.1.down")
    problem = build_problem(graph, 4, pins=pins)
    described = [describe(candidate, node) for candidate in problem.candidates[graph.nodes.index(node)]]
    assert sorted(described, key=str) == [{"d": 2, "f": 2}, {"n": 2, "d": 2}]


@pytest.mark.parametrize("text", ["layer.*.up=n/3,...", "layer.*.up=n/2,...", "y=k/3,replicas/2,...", "*=..."])
def test_larger_offers_have_what_smaller_ones_have(text):
    """So the cheapest plan by the paper's cost is always one of those that the search may take."""
    graph, pins = read(), pin_all(text)
    strict, flexible = (build_problem(graph, 8, flexible=flag, pins=pins) for flag in (False, True))
    for few, many in zip(strict.candidates, flexible.candidates, strict=True):
        assert all(cut in many for cut in few)


def test_two_pins_with_one_pattern_and_other_cuts_contradict():
    pins = [*parse_pin_file("layer.*=n/4\n", "p.txt"), parse_pin("layer.*=n/2")]
    with pytest.raises(UsageError, match=r"pin 'layer.\*=n/2' contradicts 'layer.\*=n/4' in p.txt:1(.|\n)*leave one"):
        optimize(read(), 4, pins=pins)
    assert cuts(optimize(read(), 4, pins=pins[:1] * 2)) == cuts(optimize(read(), 4, pins=pins[:1]))


def test_a_later_pin_replaces_an_earlier_one():
    chosen = cuts(optimize(read(), 4, pins=pin_all("layer.*=n/4", "layer.1.*=n/2", "layer.1.down=f/3")))
    assert chosen["layer.0.up"] == chosen["layer.0.down"] == {"n": 4}
    assert chosen["layer.1.up"] == {"n": 2}
    assert chosen["layer.1.down"] == {"f": 3}  # on three of the four sites


def test_a_dimension_stands_for_the_index_that_cuts_it():
    """The indices of a `matmul` are i, j and k."""
    chosen = cuts(optimize(read(), 4, pins=pin_all("y=n/2,f/2")))
    assert chosen["y"] == {"i": 2, "k": 2}


def test_both_ways_to_cut_queries_are_left_to_the_optimizer():
    for lens, name in (((16,), "queries"), ((7, 9), "sequence")):
        text = (MODELS / "llama_block.ein").read_text()
        graph = fuse(build_graph(text, "block.ein", (("seq_lens", str(list(lens))),), "tiny"))
        (node,) = (node for node in graph.nodes if node.operator.family == "attention")
        offered = enumerate_candidates(node.operator, 3)
        for cut, index in ((f"{name}/2", name), ("queries/3", "queries"), ("tokens/2", name)):
            candidates = PinnedOffers(graph, [parse_pin(f"a={cut}")], 3).restrict(node, offered)
            cuts = [
                {i.name: c for i, c in zip(node.operator.indices, candidate.intervals, strict=True)}
                for candidate in candidates
            ]
            assert {name for cut in cuts for name, intervals in cut.items() if len(intervals) > 1} == {index}
            assert [cut["queries"] for cut in cuts] == sorted({cut["queries"] for cut in cuts})
            assert len(candidates) == (2 if index == "queries" else 1)


def test_pins_in_a_file():
    pins = parse_pin_file("# mine\n\nlayer.*.up = f/2   # by columns\n  y=whole\n", "pins.txt")
    assert [(str(pin), pin.where) for pin in pins] == [
        ("layer.*.up=f/2", "pins.txt:3"),
        ("y=whole", "pins.txt:4"),
    ]
    with pytest.raises(UsageError) as caught:
        parse_pin_file("y=whole\ny=n/0\n", "pins.txt")
    assert caught.value.where == "pins.txt:2"


@pytest.mark.parametrize(
    ("line", "times", "where", "message"),
    [
        ("y=whole", 2001, "pins.txt:2002", "more than 2,000 pins"),
        ("*" * 995 + "=whole", 1, "pins.txt:2", "a pin of 1,001 characters"),
    ],
    ids=["lines", "characters"],
)
def test_a_file_with_too_much_is_refused_where_it_becomes_too_much(line, times, where, message):
    with pytest.raises(UsageError) as caught:
        parse_pin_file("# many\n" + f"{line}\n" * times + "no pin\n", "pins.txt")
    assert caught.value.where == where
    assert message in caught.value.message
    most = min(times, 2000)
    assert len(parse_pin_file(f"# not too much\n{line[-1000:]}\n" * most, "pins.txt")) == most


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("layr.0.up=f/2", ["matches no operator", "did you mean 'layer.0.up'", "'layer.0.act'"]),
        ("z=f/2", ["matches no operator", "'z' is an input or a weight"]),
        ("layer.*.up=g/2", ["'layer.0.up'", "no index 'g'", "n (up to 12), d (up to 6), f (up to 10)"]),
        ("y=g/2", ["no index 'g'", "it can be cut along i or n (up to 12), j or d (up to 6), k or f (up to 10)"]),
        ("layer.*.up=d/7", ["index 'd' cannot be cut into 7", "the most is 6, of 6 positions"]),
        ("layer.*.up=n/3,f/2", ["takes 6 sites", "there are 4"]),
        ("layer.*.up=n/2,replicas/3", ["takes 6 sites"]),
        ("y=d/2,replicas/2", ["on several sites"]),
        ("y=n/2,i/2", ["index 'i' is named twice"]),
    ],
)
def test_what_is_not_possible_is_refused(text, pieces):
    with pytest.raises(UsageError) as caught:
        build_problem(read(), 4, pins=pin_all(text))
    message = caught.value.render()
    assert text in message
    for piece in pieces:
        assert piece in message


@pytest.mark.parametrize(
    "text", ["", "y", "=n/2", "y=", "y=n", "y=n/", "y=n/0", "y=/2", "y=n/-1", "y=n/2,n/2", "y=n/2,,"]
)
def test_what_is_no_pin_is_refused(text):
    with pytest.raises(UsageError):
        parse_pin(text)


def test_there_is_an_end_to_pins():
    with pytest.raises(UsageError, match="2,001 pins; at most 2,000"):
        build_problem(read(), 4, pins=pin_all("y=whole") * 2001)
