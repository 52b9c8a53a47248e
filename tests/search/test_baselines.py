"""The well-known plans that are built from a graph's structure: which cut each operator gets, and what they cost."""

from __future__ import annotations

from math import prod

import pytest

from einc.frontend import build as build_graph
from einc.graph.fuse import fuse
from einc.logical.optimize import build_choices
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.options import BASELINES
from einc.physical.build import build
from einc.physical.verify import verify
from einc.search.baselines import build_baselines
from einc.search.dimensions import find_axes
from einc.training.steps import StepOptions, derive_training_step
from tests.support.logical_toys import random_graph
from tests.support.peak_machines import load_at_peak

BLOCK = "models/llama_block.ein"
BATCHED = """model batched
dim batch = 6
dim s = 10
dim d_model = 24
dim heads = 4
dim d_head = 6
input x : f32[batch, s, d_model]
weight w_q : f32[heads, d_head, d_model]
weight w_k : f32[heads, d_head, d_model]
weight w_v : f32[heads, d_head, d_model]
weight w_o : f32[d_model, heads, d_head]
q[batch, heads, s, d_head] = x[batch, s, d_model] * w_q[heads, d_head, d_model]
k[batch, heads, t, d_head] = x[batch, t, d_model] * w_k[heads, d_head, d_model]
v[batch, heads, t, d_head] = x[batch, t, d_model] * w_v[heads, d_head, d_model]
scores[batch, heads, s, t] = q[batch, heads, s, d_head] * k[batch, heads, t, d_head]
p = softmax(scores, "t")
c[batch, heads, s, d_head] = p[batch, heads, s, t] * v[batch, heads, t, d_head]
o[batch, s, d_model] = c[batch, heads, s, d_head] * w_o[d_model, heads, d_head]
y = x + o
output y
"""


def read(text, preset=None, definitions=()):
    if text.endswith(".ein"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    return fuse(build_graph(text, "model.ein", tuple(definitions), preset, None))


def build_all(graph, sites, names=tuple(BASELINES)):
    problem = build_problem(graph, sites, flexible=True)
    return problem, {baseline.name: baseline for baseline in build_baselines(graph, problem, sites, names)}


def cuts(graph, problem, baseline):
    """For every operator its cut indices with their counts; of replicated ones also the number of replicas."""
    chosen = {}
    for node, options, number in zip(graph.nodes, problem.candidates, baseline.chosen, strict=True):
        counts = zip(node.operator.indices, map(len, options[number].intervals), strict=True)
        replicas = options[number].replicas
        chosen[node.name] = {index.name: count for index, count in counts if count > 1}
        if replicas > 1:
            chosen[node.name]["replicas"] = replicas
    return chosen


def device_program(graph, problem, baseline, machine):
    choices = build_choices(graph, problem, baseline.chosen)
    return build(LogicalPlan(graph, len(machine.sites), baseline.name, choices, False, 0, baseline.spread), machine)


def test_everything_by_tokens_is_faster_than_the_optimum_of_the_proxy():
    """8 sequences of 1K tokens on eight H100s: 0.527 ms, where the plan that moves the fewest elements takes 0.682."""
    graph, machine = read(BLOCK, "b8x1k"), load_at_peak("dgx-h100")
    problem, built = build_all(graph, 8)
    chosen = cuts(graph, problem, built["data"])
    assert chosen.pop("a") == {"sequence": 8}
    assert all(cut == {"tokens": 8} for cut in chosen.values())
    assert device_program(graph, problem, built["data"], machine).predicted_ms == pytest.approx(0.527, abs=0.001)
    assert built["sequence"].same_as == "data"


@pytest.mark.parametrize("sites", [3, 4])
def test_a_block_of_a_transformer(sites):
    """Three sequences, six query heads, three key/value heads: four sites take two shares of them, each by tokens."""
    graph = read(BLOCK, "tiny")
    problem, built = build_all(graph, sites)
    megatron, between = cuts(graph, problem, built["megatron"]), {"replicas": sites}
    assert megatron["h"] == megatron["r"] == megatron["n"] == megatron["y"] == between
    heads, sizes = {3: (3, {}), 4: (2, {"tokens": 2})}[sites]
    assert megatron["q"] == megatron["rq"] == megatron["o"] == {"heads_q": heads, **sizes}
    assert megatron["k"] == megatron["v"] == megatron["rk"] == {"heads_kv": heads, **sizes}
    assert megatron["a"]["heads_kv"] == heads
    assert prod(megatron["a"].values()) == sites
    assert megatron["gate"] == megatron["up"] == megatron["f"] == megatron["down"] == {"d_ff": sites}
    along = cuts(graph, problem, built["megatron-sequence"])
    assert {name for name in along if along[name] != megatron[name]} == {"h", "r", "n", "y"}
    assert along["h"] == along["y"] == {"tokens": sites}
    data = cuts(graph, problem, built["data"])
    assert data["a"] == {"sequence": heads}
    assert data["q"] == data["gate"] == data["y"] == {"tokens": heads}  # other sites have nothing to do
    assert set(map(tuple, cuts(graph, problem, built["single"]).values())) == {()}


HIDDEN = """model hidden
dim a = 7
dim b = 9
dim d = 8
input x : f32[a, b, d]
weight w : f32[d, d]
h = matmul(relu(x), w)
g = reshape(h, rows=b, cols=a, d=d)
k = matmul(relu(g), w)
f = reshape(k, cols=a, dd=d, rows=b)
y = softmax(exp(f), "rows")
output y
"""


def test_the_reshape_that_hides_a_batch_is_named():
    _, built = build_all(read(HIDDEN), 2, ("data",))
    assert built["data"].reason == (
        "no dimension runs from an input to the outputs with independent positions; "
        "one ends at the reshape 'g' (model.ein:8), which cannot be cut along it"
    )


def test_a_single_sequence_is_no_batch():
    graph = read(BLOCK, "tiny", [("seq_lens", "[64]")])
    problem, built = build_all(graph, 3)
    assert built["data"].chosen is None
    assert built["data"].reason.endswith("with independent positions")
    along, heads = (cuts(graph, problem, built[name]) for name in ("sequence", "sequence-heads"))
    assert along["q"] == along["o"] == along["f"] == {"tokens": 3}
    assert along["a"] == {"queries": 3}
    assert {name: cut for name, cut in heads.items() if cut != along[name]} == {"a": {"heads_kv": 3}}
    number = [node.name for node in graph.nodes].index("a")
    candidate = problem.candidates[number][built["sequence"].chosen[number]]
    pairs = [(up - lo) * (lo + up + 1) // 2 for lo, up in candidate.intervals[2]]  # query i sees i + 1 keys
    assert max(pairs) < 1.2 * sum(pairs) / 3  # evenly, the last third would have 1.6 times as many


def test_batch_and_tokens_are_told_apart():
    graph = read(BATCHED)
    problem, built = build_all(graph, 2)
    assert set(map(str, cuts(graph, problem, built["data"]).values())) == {"{'batch': 2}"}
    along = cuts(graph, problem, built["sequence"])
    assert along["scores"] == along["p"] == along["c"] == along["q"] == along["o"] == {"s": 2}
    assert along["k"] == {"t": 2}
    heads = cuts(graph, problem, built["sequence-heads"])
    assert heads["q"] == along["q"]
    assert heads["scores"] != along["scores"]
    megatron = cuts(graph, problem, built["megatron"])
    assert all(megatron[name] == {"heads": 2} for name in ("q", "k", "v", "scores", "p", "c", "o"))
    assert megatron["y"] == {"replicas": 2}


def test_what_rewrites_weights_has_no_batch():
    """As the factors of batch norms are, of which a network has more than operators on images."""
    norms = [f"weight a{k} : f32[c]\nb{k} = rsqrt(a{k} + 1.0)\nc{k} = reshape(b{k}, one=1, o=8)" for k in range(5)]
    body = "y[n, o] = x[n, c] * w[o, c]\nz[n, o] = y[n, o] + " + " + ".join(f"c{k}[0, o]" for k in range(5))
    heading = "model m\ndim n = 6\ndim c = 8\ndim o = 8\ninput x : f32[n, c]\nweight w : f32[o, c]"
    graph = read("\n".join([heading, *norms, body, "output z", ""]))
    _, baselines = build_all(graph, 3, ("data",))
    assert baselines["data"].chosen is not None


def test_axes_join_what_is_cut_together():
    graph = read(BATCHED)
    axes = find_axes(graph)
    names = {
        (node.name, node.operator.indices[index.position].name): index.axis
        for node, indices in zip(graph.nodes, axes.nodes, strict=True)
        for index in indices
    }
    batch, tokens, heads = names["q", "batch"], names["q", "s"], names["q", "heads"]
    assert len({batch, tokens, heads}) == 3
    assert {axis for (_, name), axis in names.items() if name in ("s", "t", "tokens")} == {tokens}
    assert {axis for (_, name), axis in names.items() if name == "batch"} == {batch}
    assert names["o", "heads"] == heads
    assert axes.mixed >= {tokens}
    assert batch not in axes.mixed
    assert heads in axes.weighted
    assert tokens not in axes.weighted


def test_one_site_moves_nothing():
    graph, machine = read(BLOCK, "tiny"), load_machine("dgx-a100").restrict(range(4))
    problem, built = build_all(graph, 4, ["single"])
    program = device_program(graph, problem, built["single"], machine)
    assert {task.site for task in program.tasks} == {0}


def test_what_does_not_apply_has_a_reason():
    graph = read("models/chain_a.ein", definitions=[("scale", "256")])
    _, built = build_all(graph, 4)
    assert built["single"].chosen is not None
    for name in ("data", "sequence"):
        assert built[name].chosen is None
        assert built[name].reason


def test_pairs_of_products():
    """An MLP of three products: the first two are a pair, and the last one, which has no second, goes by columns."""
    text = """model three
dim n = 12
dim a = 8
dim b = 16
dim c = 24
dim e = 32
input x : f32[n, a]
weight w1 : f32[a, b]
weight w2 : f32[b, c]
weight w3 : f32[c, e]
h = matmul(x, w1)
r = relu(h)
g = matmul(r, w2)
y = matmul(g, w3)
output y
"""
    graph = read(text)
    problem, built = build_all(graph, 4, ["megatron"])
    chosen = cuts(graph, problem, built["megatron"])
    assert (chosen["h"], chosen["r"]) == ({"k": 4}, {"b": 4})
    assert chosen["g"] == {"j": 4}
    assert chosen["y"] == {"k": 4}


@pytest.mark.parametrize("seed", range(6))
def test_any_graph_has_baselines_or_reasons(seed):
    graph, sites = random_graph(seed, 2 + seed, tree=seed % 2 == 0), (1, 3, 4, 5, 7, 8)[seed]
    problem, built = build_all(graph, sites)
    machine = load_machine("dgx-a100").restrict(range(sites))
    for baseline in built.values():
        if baseline.chosen is None:
            assert baseline.reason
        else:
            verify(device_program(graph, problem, baseline, machine))
    assert built["single"].chosen is not None


STEP = """model step
dim n = 48
dim w = 8
dim h = 32
input x : f32[n, w]
input t : f32[n, w]
weight gain : f32[w]
weight up : f32[w, h]
weight down : f32[h, w]
e = matmul(relu(matmul(rmsnorm(x, gain), up)), down) - t
output loss = mean(e * e, "n", "w")
"""


def test_training_steps_have_the_plans_that_people_write_by_hand():
    """Data parallelism keeps all states everywhere, FSDP cuts them, and Megatron cuts those of its pair."""
    graph = fuse(derive_training_step(build_graph(STEP, "m.ein"), "loss", "adamw", None, StepOptions(precision="bf16")))
    problem, built = build_all(graph, 4)
    data, fsdp, megatron = (cuts(graph, problem, built[name]) for name in ("data", "fsdp", "megatron"))
    (product,) = [node.name for node in graph.nodes if node.outputs[0].startswith("up.bf16.gradient")]
    rows = next(i.name for i in graph.nodes[graph.positions[product]].operator.indices if i.extent == 48)
    assert data[product] == fsdp[product] == {rows: 4}  # its results are partial, and added up
    assert data["up.next"] == data["gain.mean.next"] == {"replicas": 4}
    assert set(fsdp["up.next"].values()) == set(fsdp["gain.mean.next"].values()) == {4}
    columns = [index for index, count in megatron["up.next"].items() if count == 4]
    assert columns
    assert megatron["gain.next"] == {"replicas": 4}
    assert set(cuts(graph, problem, built["megatron-sequence"])["e"]) <= {"n", "i0"}
    machine, memory = load_machine("dgx-a100").restrict((0, 1, 2, 3)), {}
    for name in ("data", "fsdp", "megatron"):
        memory[name] = max(device_program(graph, problem, built[name], machine).memory)
    assert memory["fsdp"] < memory["data"]


def test_a_lookup_of_rows_begins_no_pair():
    """In a step, it is an index equation that aggregates, as products do, and reads floats once."""
    text = STEP.replace("input x : f32[n, w]\n", "dim v = 40\ninput ids : i64[n]\nweight table : f32[v, w]\n")
    text = text.replace("e = ", "x = embedding(ids, table)\ne = x + ")
    graph = fuse(derive_training_step(build_graph(text, "m.ein"), "loss", "adamw", None, StepOptions(precision="bf16")))
    problem, built = build_all(graph, 4)
    megatron = cuts(graph, problem, built["megatron"])
    assert megatron["x"] == {"replicas": 4}
    assert megatron["up.bf16"] == {"h": 4}


def test_a_model_without_states_has_no_fsdp():
    graph = read(BATCHED)
    _, built = build_all(graph, 2)
    assert "there are none" in built["fsdp"].reason
    assert "fsdp" not in {
        baseline.name for baseline in build_baselines(graph, build_problem(graph, 2, flexible=True), 2)
    }
