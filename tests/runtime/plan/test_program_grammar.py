"""Scalar programs: what their one parser reads, the types that it infers, and what it refuses."""

from __future__ import annotations

import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan.scalar_functions import COMPUTED_ELEMENT_TYPES, SCALAR_FUNCTIONS, STORED_ELEMENT_TYPES
from einc_runtime.plan.scalar_programs import (
    MAX_STEPS,
    FunctionStep,
    ScalarInput,
    ScalarLiteral,
    ScalarProgram,
    TypedStep,
    infer_steps,
)
from einc_runtime.plan.schema import FLOATS, INTEGERS


def read(program: str, inputs: list[str]) -> tuple[TypedStep, ...]:
    return infer_steps(ScalarProgram.parse(program, len(inputs)), inputs)


PROGRAMS = [
    # inputs, program, the type of the result
    (["f16"], "t0 = copy x0", "f16"),
    (["f16", "f16"], "t0 = lt x0 x1; t1 = where t0 x0 -1", "f16"),
    (["i32"], "t0 = mod x0 3; t1 = eq t0 -2147483648; t2 = not t1", "bool"),
    (["bool"], "t0 = eq x0 true; t1 = or t0 false; t2 = cast:bf16 t1", "bf16"),
    (["f32"], "t0 = add x0 1e-05; t1 = max t0 -inf; t2 = min t1 nan", "f32"),
]

WRONG_PROGRAMS = [
    # inputs, program, a piece of the message
    (["f32"], "t0 = relu x1", "'x1' is no operand"),
    (["f32"], "t0 = relu t0", "'t0' is no operand"),
    (["f32"], "t0 = add x0 1_0", "'1_0' is no operand"),
    (["f32"], "t0 = add x0 " + "1" * 33, "is no operand"),
    (["f32"], "t1 = relu x0", "step 0 of a scalar program is 't1 = relu x0'"),
    (["f32"], "t0 = relu x0; t0 = relu x0", "step 1"),
    (["f32"], "t0 = relu x0 x0", "step 0"),
    (["f32"], "t0 = sinh x0", "step 0"),
    (["f32"], "t0 = sinh", "step 0"),
    (["f32"], "t0 = relu  x0", "step 0"),
    (["f32", "f16"], "t0 = add x0 x1", "step 0 of a scalar program: add: operand 2 is f16 where operand 1 is f32"),
    (["f32"], "t0 = add 1 2", "add: at least one operand must be a tensor"),
    (["bool"], "t0 = relu x0", "relu does not take bool"),
    (["i32"], "t0 = exp x0", "exp does not take i32"),
    (["f32"], "t0 = where x0 x0 x0", "where: the condition must be a bool tensor, not f32"),
    (["i32"], "t0 = add x0 2147483648", "add has the literal 2147483648, which is no i32"),
    (["i32"], "t0 = add x0 0.5", "add has the literal 0.5, which is no i32"),
    (["i32"], "t0 = add x0 true", "add has the literal true, which is no i32"),
    (["bool"], "t0 = and x0 1", "and has the literal 1, which is no bool"),
    (["f32"], "; ".join(f"t{k} = neg x0" for k in range(MAX_STEPS + 1)), "more than 4096 steps"),
]


@pytest.mark.parametrize(("inputs", "program", "expected"), PROGRAMS)
def test_types_of_programs(inputs: list[str], program: str, expected: str) -> None:
    assert read(program, inputs)[-1].result_type == expected


@pytest.mark.parametrize(("inputs", "program", "message"), WRONG_PROGRAMS, ids=range(len(WRONG_PROGRAMS)))
def test_a_text_that_is_no_program(inputs: list[str], program: str, message: str) -> None:
    with pytest.raises(PlanFault) as caught:
        read(program, inputs)
    assert message in caught.value.message


def test_a_program_is_its_steps_and_prints_its_text() -> None:
    text = "t0 = sub x1 x2; t1 = cast:f32 t0; t2 = mul x0 t1; t3 = add t2 -0.0"
    program = ScalarProgram.parse(text, 3)
    assert program.text == text
    assert program.steps[0] == FunctionStep("sub", (ScalarInput(1), ScalarInput(2)))
    assert program.steps[3].operands[1] == ScalarLiteral("-0.0")
    assert [step.result_type for step in infer_steps(program, ["f32", "i64", "i64"])] == ["i64", "f32", "f32", "f32"]


@pytest.mark.parametrize(
    "word", ["1e5", "1.", ".5", "01", "-0x1", "+1", "1_0", "Inf", "-nan", "True", "1E-05", "٣", "", "9" * 30]
)
def test_a_literal_has_one_text(word: str) -> None:
    with pytest.raises(PlanFault, match="is no operand"):
        ScalarProgram.parse(f"t0 = add x0 {word}", 1)


@pytest.mark.parametrize("word", ["1", "-1.0", "1e-05", "1e+16", "inf", "-inf", "nan", "true", "-9223372036854775808"])
def test_numbers_of_element_types_are_literals(word: str) -> None:
    assert ScalarProgram.parse(f"t0 = add x0 {word}", 1).text == f"t0 = add x0 {word}"


def test_a_program_that_is_built_is_checked_as_one_that_is_read() -> None:
    for steps in [(), (FunctionStep("neg", (ScalarInput(1),)),), (FunctionStep("neg", (ScalarInput(-1),)),)]:
        with pytest.raises(PlanFault):
            ScalarProgram(1, steps)


def test_types_in_which_values_are_computed_take_the_place_of_their_own() -> None:
    program = ScalarProgram.parse("t0 = add x0 x1; t1 = cast:f16 t0; t2 = lt t1 0.5", 2)
    wide = infer_steps(program, ["f16", "bf16"], lambda name: "f32" if name in ("f16", "bf16") else name)
    assert [(step.operand_type, step.result_type) for step in wide] == [("f32", "f32"), ("f32", "f32"), ("f32", "bool")]
    with pytest.raises(PlanFault, match="operand 2 is bf16 where operand 1 is f16"):
        infer_steps(program, ["f16", "bf16"])


def test_the_table_has_types_that_there_are() -> None:
    for name, function in SCALAR_FUNCTIONS.items():
        converts = name == "copy" or name.startswith("cast:")
        known = STORED_ELEMENT_TYPES if converts else COMPUTED_ELEMENT_TYPES
        assert set(function.accepts) <= set(known), name
        assert function.result in (None, *known), name
        assert 0 <= function.conditions < function.arity <= 3, name
    assert {*FLOATS, *INTEGERS, "bool"} == set(COMPUTED_ELEMENT_TYPES)
