"""Quantized weights from the text to the graph: their parts, the products that read them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.core.tensor import DType, TensorDesc
from einc.errors import ModelError, OperatorError
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.graph.graph import Graph, verify_graph
from einc.logical.pins import parse_pin
from einc.machines.load import parse_machine
from einc.ops import registry
from einc.ops.dequantize import Dequantize, QuantizedForm
from einc.options import CompileOptions
from einc_runtime.execution.session import Session
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.proof import prove
from tests.support.quantized_cases import FORMS, quantized

TEXT = """
model quantized
dim t = 3
dim n = 6
dim h = 3
dim k = 96
input x : f16[t, k]
weight w : f16[n, k] as i4(group=32, zeros=true) from "m.w.weight"
weight v : f16[h, n, k] as i8
weight rows : f16[n, k] as i4(group=96, layout="gptq") from "m.rows[2:8]"
weight o : f16[n, h, k] as i8(channels=1)
"""


def graph_of(lines: str, **options: str) -> Graph:
    return build(TEXT + lines, "quantized.ein", **options)  # type: ignore[arg-type]


def describe(graph: Graph) -> list[str]:
    return [f"{node.operator.title}({', '.join(node.inputs)})" for node in graph.nodes]


def test_a_weight_is_declared_by_its_parts() -> None:
    graph = graph_of("y[t, n] = x[t, k] * w[n, k]\noutput y\n", dtype="bf16")
    results = [(t.name, str(t.desc), t.stored) for t in graph.tensors if t.name.startswith(("w", "v", "rows", "o"))]
    assert results[:3] == [
        ("w.values", "i4x2[n=6, k=48]", "m.w.weight"),
        ("w.scales", "bf16[n=6, k=3]", "m.w.weight_scale"),
        ("w.zeros", "i8[n=6, k=3]", "m.w.weight_zero_point"),
    ]
    assert ("v.scales", "bf16[h=3, n=6]", "v_scale") in results
    assert ("o.scales", "bf16[n=6]", "o_scale") in results
    assert ("rows.values", "i4x2[n=6, k=48]", "gptq:m.rows.qweight[2:8]") in results


def test_products_read_what_is_stored_and_others_read_what_it_stands_for() -> None:
    both = graph_of("y[t, n] = x[t, k] * w[n, k]\nz[t, n] = w[n, k] * x[t, k] * 2.0\noutput y, z\n")
    assert describe(fuse(both)) == ["quantized_product(x, w.values, w.scales, w.zeros)"] * 2
    assert [node.operator.attributes["factor"] for node in fuse(both).nodes] == [1.0, 2.0]
    mixed = graph_of("y[t, n] = x[t, k] * w[n, k]\nz = w + 1.0\noutput y, z\n")
    assert describe(fuse(mixed)) == ["dequantize(w.values, w.scales, w.zeros)", "contract(x, w)", "add(w)"]
    turned = graph_of("y[t, k] = sum[n](x[t, k] * w[n, k])\noutput y\n")
    assert describe(fuse(turned))[0] == "dequantize(w.values, w.scales, w.zeros)"
    heads = graph_of("y[h, t, n] = x[t, k] * v[h, n, k]\nz[t] = y[h, t, n] * y[h, t, n]\noutput z\n")
    assert describe(fuse(heads)) == ["quantized_product(x, v.values, v.scales)", "contract(y, y)"]


EXPERTS = """
model experts
dim t = 5
dim e = 4
dim n = 6
dim k = 64
dim s = 2
input x : bf16[t, k]
input picks : i64[t, s]
weight w : bf16[e, n, k] as nvfp4(channels=1) from "e.*.weight"
"""


def test_picked_experts_are_read_as_they_are_stored() -> None:
    graph = build(EXPERTS + "y = expert_matmul(x, w, picks)\noutput y\n", "experts.ein")
    factor = next(tensor for tensor in graph.tensors if tensor.name == "w.factor")
    assert (str(factor.desc), factor.stored) == ("f32[e=4]", "inverse:e.*.weight_global_scale")
    assert describe(fuse(graph)) == ["quantized_experts(x, w.values, w.scales, w.factor, picks)"]
    operator = fuse(graph).nodes[0].operator
    assert [(index.name, index.extent, index.cuts) for index in operator.indices] == [
        ("t", 5, None), ("s", 2, None), ("n", 6, None), ("k", 64, (16, 32, 48)), ("e", 4, None)
    ]  # fmt: skip
    with_sum = build(EXPERTS + "y = expert_matmul(x, w, picks)\nz = w + 1.0\noutput y, z\n", "experts.ein")
    assert describe(fuse(with_sum))[0] == "dequantize(w.values, w.scales, w.factor)"


def test_slices_become_windows_of_both_sides() -> None:
    lines = "a = slice(x, t=[1, 3], k=[32, 96])\nb = slice(w, n=[2, 5], k=[0, 64])\n"
    graph = fuse(graph_of(lines + "y[r, c] = a[r, j] * b[c, j]\noutput y\n"))
    assert describe(graph) == ["quantized_product(x, w.values, w.scales, w.zeros)"]
    assert graph.nodes[0].operator.attributes["windows"] == "1:3 32:96, 2:5 0:64"
    uneven = "a = slice(x, k=[16, 80])\nb = slice(w, k=[16, 80])\ny[r, c] = a[r, j] * b[c, j]\noutput y\n"
    assert describe(fuse(graph_of(uneven)))[0] == "dequantize(w.values, w.scales, w.zeros)"


def test_cuts_are_between_groups() -> None:
    operator = quantized(DType.F32)["product_i4_groups_zeros"]
    (t, k, n) = operator.indices
    assert (t.cuts, n.cuts, k.cuts) == (None, None, (32, 64))
    spec = operator.build_spec((((0, 5),), k.intervals(2), ((0, 7),)))
    blocks = [[str(block) for block in function.inputs] for function in spec.functions]
    assert blocks == [
        ["[0:5, 0:32]", "[0:7, 0:16]", "[0:7, 0:1]", "[0:7, 0:1]"],
        ["[0:5, 32:96]", "[0:7, 16:48]", "[0:7, 1:3]", "[0:7, 1:3]"],
    ]
    assert operator.traffic(spec.functions[1]) == 5 * 64 * 4 + 7 * 32 + 7 * 2 * 4 + 7 * 2 + 5 * 7 * 4
    assert operator.flops(spec.functions[1]) == 2 * 5 * 7 * 64
    assert quantized(DType.F32)["product_odd"].indices[1].cuts == tuple(range(2, 22, 2))
    assert quantized(DType.F32)["product_i4"].indices[1].cuts == (32, 64)


def decode_float(bits: int, exponent_bits: int, fraction_bits: int, bias: int) -> float:
    """By the definition of the formats (OCP 8-bit floating point and Microscaling Formats specifications)."""
    size = exponent_bits + fraction_bits
    sign = -1.0 if bits >> size & 1 else 1.0
    exponent, fraction = (bits & (1 << size) - 1) >> fraction_bits, bits & ((1 << fraction_bits) - 1)
    if size == 7 and exponent == (1 << exponent_bits) - 1 and (exponent_bits == 5 or fraction == 7):
        return sign * np.inf if fraction == 0 else np.nan
    part = fraction / (1 << fraction_bits)
    return sign * (part * 2.0 ** (1 - bias) if exponent == 0 else (1 + part) * 2.0 ** (exponent - bias))


DECODED = {"f8e4m3": (4, 3, 7), "f8e5m2": (5, 2, 15), "f4x2": (2, 1, 1)}


def decode_scale(bits: int, kind: str) -> float:
    return decode_float(int(bits), 4, 3, 7) if kind == "f8e4m3" else np.nan if bits == 255 else 2.0 ** (int(bits) - 127)


@pytest.mark.parametrize("name", FORMS)
def test_the_meaning_of_a_weight_element_by_element(name: str) -> None:
    form, rng = FORMS[name], np.random.default_rng(3)
    values_desc, scales_desc, *more = form.operands(TensorDesc(("n", "k"), (3, 64), DType.F32))
    stored = rng.integers(0, 256, values_desc.shape, np.uint8)
    scales = rng.standard_normal(scales_desc.shape).astype("f4")
    if form.stored.group:
        bits = rng.integers(100, 150, scales_desc.shape, np.uint8)
        scales = bits.view(scales_desc.dtype.numpy())
        each = np.vectorize(decode_scale)(bits, form.stored.scales).astype("f4")
    else:
        each = scales
    zeros = [rng.integers(-128, 128, desc.shape).astype("i1") for desc in more if desc.dtype is DType.I8]
    factor = [np.float32(0.3)] if form.stored.has_factor else []
    operands = (values_desc, scales_desc, *more)
    dtype = DType.F32 if form.stored.is_float else None
    arrays = (stored.view(values_desc.dtype.numpy()), scales, *zeros, *map(np.asarray, factor))
    (result,) = Dequantize(operands, form.group, dtype=dtype).reference(*arrays)
    for n in range(3):
        for k in range(64):
            at = (n, k // form.group) if form.group else (n,) * scales.ndim
            number = int(stored[n, k // form.packing])
            if form.packing == 2:
                number = number // 16 if k % 2 else number % 16
            if form.stored.is_float:
                value = decode_float(number, *DECODED[form.stored.values])
                np.testing.assert_equal(result[n, k], np.float32(value) * (each[at] * (factor or [np.float32(1)])[0]))
                continue
            number = number - 8 if form.packing == 2 else int(np.uint8(number).view("i1"))
            zero = int(zeros[0][at]) if zeros else 0
            assert result[n, k] == np.float32(number - zero) * scales[at]


ROUNDED = """
weight up : f16[n, k] as i8(inputs=8)
weight gate : f16[h, n, k] as i8(inputs=8)
"""


def test_products_of_integers_share_the_largest_elements_of_rows() -> None:
    lines = "u[t, n] = x[t, k] * up[n, k] * 2.0\ng[t, h, n] = gate[h, n, k] * x[t, k]\noutput u, g\n"
    graph = fuse(graph_of(ROUNDED + lines))
    verify_graph(graph)
    assert describe(graph) == [
        "max(abs)(x)",
        "rounded_product(x, x.largest, up.values, up.scales)",
        "rounded_product(x, x.largest, gate.values, gate.scales)",
    ]
    largest, first, _ = graph.nodes
    assert str(largest.operator.outputs[0]) == "f16[t=3]"
    assert first.operator.attributes["factor"] == 2.0
    parts = "a = slice(x, t=[1, 3], k=[32, 96])\nb = slice(up, n=[2, 5], k=[0, 64])\ny[r, c] = a[r, j] * b[c, j]\n"
    graph = fuse(graph_of(f"{ROUNDED}{parts}u[t, n] = x[t, k] * up[n, k]\noutput y, u\n"))
    verify_graph(graph)
    assert [node.operator.attributes.get("windows") for node in graph.nodes] == [
        "1:3 32:96", "1:3 32:96, 2:5 0:64", None, None,
    ]  # fmt: skip
    assert {"x.largest", "x.largest_2"} <= {tensor.name for tensor in graph.tensors}


def test_what_is_no_product_of_integers_takes_floats() -> None:
    mixed = fuse(graph_of(f"{ROUNDED}y[t, n] = x[t, k] * up[n, k]\nz = up + 1.0\noutput y, z\n"))
    assert describe(mixed) == ["dequantize(up.values, up.scales)", "contract(x, up)", "add(up)"]
    assert mixed.nodes[0].operator.attributes == {"group": 0}
    summed = "q[t, h, j] = x[t, k] * r[h, j, k]\nz[t] = q[t, h, j] * s[h, j]\noutput z\n"
    lines = "dim j = 5\nweight r : f16[h, j, k] as i8(inputs=8)\nweight s : f16[h, j] as i8(inputs=8)\n"
    described = describe(fuse(graph_of(lines + summed)))
    assert described == [
        "max(abs)(x)",
        "rounded_product(x, x.largest, r.values, r.scales)",
        "quantized_product(q, s.values, s.scales)",
    ]
    lines = "dim d = 2 ** 17 + 1\ninput r : f16[d]\nweight m : f16[n, d] as i8(inputs=8)\n"
    long = graph_of(lines + "y[n] = r[d] * m[n, d]\noutput y\n")
    assert describe(fuse(long)) == ["quantized_product(r, m.values, m.scales)"]


def test_rounded_products_are_restored_from_their_attributes() -> None:
    operator = quantized(DType.F32)["rounded_parts"]
    assert registry.restore(operator.family, operator.inputs, operator.attributes) == operator
    tensor, largest, values, scales = operator.inputs
    with pytest.raises(OperatorError, match="rounded_product: of i8"):
        registry.restore(operator.family, (tensor, values, scales), operator.attributes)
    with pytest.raises(OperatorError, match="where rows are"):
        registry.restore(operator.family, (tensor, tensor, values, scales), operator.attributes)
    pairs = QuantizedForm(STORED_FORMS["i4"]).operands(TensorDesc(("n", "k"), (7, 96), DType.F32))
    with pytest.raises(OperatorError, match="rounded_product: of i4x2"):
        registry.restore(operator.family, (tensor, largest, *pairs), operator.attributes)


def test_products_of_integers_take_the_time_of_integers() -> None:
    operator = quantized(DType.BF16)["rounded"]
    plain = quantized(DType.BF16)["product_i8"]
    assert (operator.precision, plain.precision) == ("i8", "bf16")
    undivided = tuple(((0, index.extent),) for index in operator.indices)
    (stored,), (wide,) = (candidate.build_spec(undivided).functions for candidate in (operator, plain))
    assert operator.flops(stored) == plain.flops(wide) == 2 * 5 * 96 * 7
    assert operator.traffic(stored) == plain.traffic(wide) + 5 * 2 + 2 * 5 * 96  # rounded, written and read
    machine = '{"name": "m", "sites": [{"hbm_gbs": 1, "memory_bytes": 9, "flops": {%s}}], "resources": []}'
    peaks = ('"f32": 1.0, "f16": 2.0, "i8": 4.0', '"f32": 1.0, "f16": 2.0', '"f32": 1.0')
    assert [parse_machine(machine % peak).sites[0].peak("i8") for peak in peaks] == [4.0, 2.0, 1.0]


def test_plans_that_cut_the_sum_round_each_row_alike() -> None:
    text = "model m\ndim t = 5\ndim n = 6\ndim k = 96\ninput x : f32[t, k]\n"
    text += "weight w : f32[n, k] as i8(inputs=8)\ny[t, n] = x[t, k] * w[n, k]\noutput y\n"
    rng = np.random.default_rng(3)
    x, values = rng.standard_normal((5, 96)).astype("f4"), rng.integers(-128, 128, (6, 96), np.int8)
    scales = rng.random(6).astype("f4")
    results = []
    for count, cut, reproducible in ((1, "k/1", True), (3, "t/3", True), (3, "k/3", False), (4, "k/2,n/2", False)):
        pins = (parse_pin(f"y={cut}", "command line"),)
        options = CompileOptions(machine="host", devices=count, pins=pins, reproducible=reproducible)
        bundle = compile_model(text, "m.ein", options).bundle
        prove(bundle)
        with Session(bundle) as session:
            session.load_all({"w.values": values, "w.scales": scales})
            results.append(session.run({"x": x})["y"])
    integers = np.rint(x * (127 / np.abs(x).max(1, keepdims=True))).astype("i8")
    expected = integers @ values.astype("i8").T * (np.abs(x).max(1, keepdims=True) / 127) * scales
    np.testing.assert_array_equal(results[0], results[1])
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-4)


BAD = {
    "as i8(inputs=4)": "inputs cannot be rounded to 4 bits",
    "as i8(inputs=true)": "expected an integer for 'inputs'",
    "as i4(inputs=8)": "no sums of integers",
    "as i8(group=32, inputs=8)": "no sums of integers",
    "as i8(zeros=true, inputs=8)": "no sums of integers",
    "as i3": "a weight cannot be stored as 'i3'",
    "as i4(32)": "options have names here",
    "as i4(groups=32)": "there is no option 'groups'",
    "as i4(group=true)": "expected an integer for 'group'",
    'as i4(zeros="yes")': "expected true or false for 'zeros'",
    "as i4(group=32, group=32)": "argument 'group' is given twice",
    "as i4(group=20)": "groups of 20",
    "as i4(group=64)": "no multiple of 64",
    "as i8(channels=2)": "channels of 2 dimensions",
    'as i4(layout="tiled")': "there is no layout 'tiled'",
}


@pytest.mark.parametrize("storage", BAD)
def test_what_cannot_be_stored_is_refused(storage: str) -> None:
    with pytest.raises(ModelError, match=BAD[storage].replace("(", r"\(")):
        graph_of(f"weight bad : f16[n, k] {storage}\noutput z = x + 1.0\n")


def test_a_weight_of_integers_is_not_quantized() -> None:
    with pytest.raises(ModelError, match="stand for floats"):
        graph_of("weight bad : i32[n, k] as i8\noutput z = x + 1.0\n")
    with pytest.raises(ModelError, match="there is no element type 'i8'"):
        graph_of("weight bad : i8[n, k]\noutput z = x + 1.0\n")
    with pytest.raises(OperatorError, match="bytes"):
        QuantizedForm(STORED_FORMS["i4"]).operands(TensorDesc(("n", "k"), (3, 5), DType.F32))
