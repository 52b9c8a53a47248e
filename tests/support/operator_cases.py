"""Operators over uneven sizes, at least one per family, call and kind of index equation."""

from __future__ import annotations

from einc.core.tensor import ELEMENT_TYPES, DType, TensorDesc, TensorType
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS
from einc_runtime.plan.scalar_programs import ScalarProgram
from tests.support.quantized_cases import quantized

COMPUTED_TYPES = tuple(dtype for dtype in ELEMENT_TYPES if not dtype.is_narrow_float)
"""Those in which models compute."""
SIZES = {"t": 7, "d": 9, "f": 5, "h": 6, "s": 4, "u": 11}
POSITIVE = {"log", "sqrt", "rsqrt", "pow", "prod", "prod_join", "rounded", "rounded_two_summed", "rounded_parts"}
"""Cases whose data must be positive, or near one, to mean anything."""


def desc(dims: str, dtype: DType = DType.F32) -> TensorDesc:
    """`desc("t d")` has those dimensions, of the sizes above."""
    names = tuple(dims.split())
    return TensorDesc(names, tuple(SIZES[name] for name in names), dtype)


def equation(
    inputs: str, indices: str, result: str, program: str, aggregation: str | None, dtype: DType = DType.F32
) -> Operator:
    """Tensors separated by commas ("t d, d f"), their index names likewise, and the result's."""
    descs = [desc(dims, dtype) for dims in inputs.split(",")]
    labels = [tuple(part.split()) for part in indices.split(",")]
    return build_equation(
        list(zip(descs, labels, strict=True)),
        [(name, name) for name in result.split()],
        ScalarProgram.parse(program, len(descs)),
        aggregation,
    )


def unary_and_binary(dtype: DType) -> dict[str, Operator]:
    """Every scalar function that takes `dtype`, by broadcasting where it has several operands."""
    cases = {}
    for name, signature in SCALAR_FUNCTIONS.items():
        if dtype.value not in signature.accepts and name != "where":
            continue
        if name.startswith("cast:"):
            cases[name] = registry.call("cast", [desc("t d", dtype), name[5:]], {})
        elif name == "where":
            cases[name] = registry.call(name, [desc("d", DType.BOOL), desc("t d", dtype), desc("d t", dtype)], {})
        else:
            operands = [desc("t d", dtype), desc("d", dtype)][: signature.arity]
            cases[name] = registry.call(name, operands, {})
    return cases


def structural(dtype: DType) -> dict[str, Operator]:
    """Contractions, general joins, reductions and what moves elements only, over numbers of type `dtype`."""

    def eq(inputs: str, indices: str, result: str, program: str, aggregation: str | None = None) -> Operator:
        return equation(inputs, indices, result, program, aggregation, dtype)

    product3 = "t0 = mul x0 x1; t1 = mul t0 x2"
    x, y = desc("t d", dtype), desc("h s d", dtype)
    operators = {
        "matmul": registry.call("matmul", [x, desc("d f", dtype)], {}),
        "matmul_batch": registry.call("matmul", [desc("h t d", dtype), desc("h d f", dtype)], {}),
        "matmul_left_batch": registry.call("matmul", [desc("h s t d", dtype), desc("d f", dtype)], {}),
        "matmul_right_batch": registry.call("matmul", [x, desc("h d f", dtype)], {}),
        "heads": eq("t d, h s d", "t d, h e d", "h t e", "t0 = mul x0 x1", "sum"),
        "contract3": eq("t d, d f, f u", "i j, j k, k l", "l i", product3, "sum"),
        "contract_scaled": eq("t d, d f", "i j, j k", "i k", "t0 = mul 2 x0; t1 = mul t0 x1; t2 = mul 3 t1", "sum"),
        "outer": eq("t, d", "i, j", "j i", "t0 = mul x0 x1"),
        "dot": eq("d, d", "i, i", "", "t0 = mul x0 x1", "sum"),
        "square_norm": eq("t d", "i j", "i", "t0 = mul x0 x0", "sum"),
        "diagonal": eq("d d", "i i", "i", "t0 = copy x0"),
        "trace": eq("d d", "i i", "", "t0 = copy x0", "sum"),
        "diagonal_times": eq("d d, d f", "i i, i k", "k i", "t0 = mul x0 x1"),
        "diagonal_contract": eq("h d d, d f", "h i i, i k", "k h", "t0 = mul x0 x1", "sum"),
        "min_plus": eq("t d, d f", "i j, j k", "i k", "t0 = add x0 x1", "min"),
        "max_join": eq("t d, d f", "i j, j k", "k i", "t0 = sub x0 x1; t1 = abs t0", "max"),
        "prod_join": eq("t s, s", "i j, j", "i", "t0 = max x0 x1", "prod"),
        "sum_join": eq("t d, t", "i j, i", "j", "t0 = sub x0 x1; t1 = mul t0 t0", "sum"),
        "scalar_in": eq("t, ", "i, ", "i", "t0 = mul x0 x1"),
        "unsummed": eq("t d, d", "i j, j", "i j", "t0 = add x0 x1", "sum"),
        "one_sided": eq("t d, d", "i j, j", "j", "t0 = copy x1; t1 = add x0 t0", "max"),
        "sum": registry.call("sum", [y, "s"], {}),
        "sum_two": registry.call("sum", [y], {"over": ("d", "h")}),
        "sum_all": registry.call("sum", [y, "d", "s", "h"], {}),
        "prod": registry.call("prod", [desc("t s", dtype), "s"], {}),
        "max": registry.call("max", [y, "h"], {}),
        "min": registry.call("min", [y, "d"], {}),
        "transpose": registry.call("transpose", [y], {}),
        "transpose_all": registry.call("transpose", [y, "d", "h", "s"], {}),
        "split": registry.call("reshape", [y], {"a": 3, "b": 2, "s": 4, "d": 9}),
        "join": registry.call("reshape", [y], {"hs": 24, "d": 9}),
        "reshape_general": registry.call("reshape", [TensorDesc(("a", "b"), (12, 10), dtype)], {"c": 8, "d": 15}),
        "reshape_more": registry.call(
            "reshape", [TensorDesc(("a", "b", "c"), (6, 1, 10), dtype)], {"p": 3, "q": 2, "r": 5, "one": 1, "w": 2}
        ),
        "reshape_scalar": registry.call("reshape", [TensorDesc(("a",), (1,), dtype)], {}),
    }
    square = TensorDesc(("d", "e"), (11, 9), dtype)
    wide = TensorDesc(("d", "f"), (9, 13), dtype)
    operators["two_parts"] = build_equation(
        [(wide, ("i", "j")), (wide, ("i", "j"))],
        [("j", "j"), ("i", "i")],
        ScalarProgram.parse("t0 = sub x0 x1; t1 = mul t0 x1", 2),
        None,
        (TensorType((2, 1), (8, 6)), TensorType((3, 8), (9, 13))),
    )
    operators["diagonal_part"] = build_equation(
        [(square, ("i", "i"))],
        [("i", "i")],
        ScalarProgram.parse("t0 = copy x0", 1),
        None,
        (TensorType((4, 1), (10, 7)),),
    )
    for name in ("matmul", "sum_join"):
        (rows, columns), second = operators[name].inputs[0].shape, operators[name].inputs[1].shape
        last = {"matmul": f"0:{second[0]} 1:{second[-1]}", "sum_join": f"1:{rows}"}[name]
        operators[f"{name}_part"] = registry.restore(
            "equation",
            operators[name].inputs,
            {**operators[name].attributes, "windows": f"1:{rows} 0:{columns}, {last}"},
        )
    return operators


def floating(dtype: DType) -> dict[str, Operator]:
    """What only floats have."""
    y = desc("h s d", dtype)
    return {
        "softmax": registry.call("softmax", [y], {}),
        "softmax_middle": registry.call("softmax", [y, "s"], {}),
        "softmax_vector": registry.call("softmax", [desc("d", dtype)], {}),
        "mean": registry.call("mean", [y, "s", "d"], {}),
        "rmsnorm": registry.call("rmsnorm", [y, desc("d", dtype)], {"eps": 0.01}),
        "layernorm": registry.call("layernorm", [y, desc("d", dtype), desc("d", dtype)], {}),
        "rmsnorm_plain": registry.call("rmsnorm", [y], {"eps": 0.01}),
        "layernorm_plain": registry.call("layernorm", [y], {}),
        "layernorm_gain": registry.call("layernorm", [y, desc("d", dtype)], {}),
        "rmsnorm_offset": registry.call("rmsnorm", [y, desc("d", dtype)], {"offset": 1.0}),
        "rmsnorm_vector": registry.call("rmsnorm", [desc("d", dtype), desc("d", dtype)], {}),
    }


def all_cases() -> dict[str, Operator]:
    """Everything in f32, structure in the other types, and scalar functions of integers and bools."""
    cases: dict[str, Operator] = {}
    for dtype in (DType.F32, DType.F16, DType.BF16, DType.F64):
        for table in (structural(dtype), floating(dtype), quantized(dtype)):
            cases |= {f"{dtype}-{name}": operator for name, operator in table.items()}
    cases |= {f"i32-{name}": operator for name, operator in structural(DType.I32).items()}
    for dtype in COMPUTED_TYPES:
        cases |= {f"{dtype}-{name}": operator for name, operator in unary_and_binary(dtype).items()}
    return cases
