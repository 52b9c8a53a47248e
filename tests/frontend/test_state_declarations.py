"""`state`: a tensor that one append writes over, and that nothing else reads."""

from __future__ import annotations

import pytest

from einc.errors import ModelError
from einc.frontend import build
from einc.graph.graph import TensorKind, dump_graph

HEAD = """model m
dim heads = 2
dim places = 6
dim tokens = 3
dim d = 4
input new : f16[heads, tokens, d]
input positions : i64[tokens]
state keys : f16[heads, places, d]
"""


def test_an_append_writes_over_a_state() -> None:
    text = HEAD + "output ks = append(keys, new, positions)\n"
    graph = build(text, "m.ein")
    assert [tensor.name for tensor in graph.tensors if tensor.kind is TensorKind.STATE] == ["keys"]
    assert graph.nodes[0].operator.attributes["in_place"] is True
    assert "state keys : f16[heads=2, places=6, d=4]\n" in dump_graph(graph)
    plain = build(text.replace("state keys", "input keys"), "m.ein").nodes[0].operator
    assert "in_place" not in plain.attributes
    spec = graph.nodes[0].operator.build_spec(((((0, 2),)), ((0, 6),), ((0, 4),)))
    moved = graph.nodes[0].operator.traffic(spec.functions[0])
    assert (moved, plain.traffic(spec.functions[0])) == (2 * 2 * 24 + 24, 2 * (48 + 24 + 48) + 24)


@pytest.mark.parametrize(
    ("lines", "location", "message"),
    [
        ("output y = relu(keys)", "m.ein:9:12", "reads a state, and only append(state, ...) may do so"),
        ("input more : f16[heads, places, d]\ninput at : i64[places]\noutput y = append(more, keys, at)", "m.ein:11:12",
         "only the first argument of append may be one"),
        ("a = append(keys, new, positions)\noutput y = append(keys, new, positions)", "m.ein:10:12", "appended to"),
        ("a = append(keys, new, positions)\ny[d] = sum[heads, places](keys[heads, places, d])\noutput y", "m.ein:10",
         "reads a state"),
        ("output y = where(keys > 0.0, keys, keys)", "m.ein:9:18", "gt reads a state"),
        ("block b(x) {\nstate s : f16[d]\nreturn x\n}\noutput y = b(new)", "m.ein:10", "not allowed in a block"),
        ("output keys", "m.ein:9:8", "names an input or weight"),
    ],
)  # fmt: skip
def test_other_readers_are_refused(lines: str, location: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(HEAD + lines + "\n", "m.ein")
    assert location in caught.value.render()
    assert message in caught.value.render()
