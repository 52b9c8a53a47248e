"""Well-formed plans that lie: every field that could do harm, one lie at a time, and the part that the fault names."""

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import (
    Block,
    Buffer,
    CopyTask,
    Cost,
    Exchange,
    FenceTask,
    Region,
    Tensor,
    TransferTask,
)
from einc_runtime.plan.validation import validate
from einc_runtime.plan.work import ExpertsWork, ProductWork, RecurrenceWork
from tests.support.changed_plans import changed, parse
from tests.support.handmade_plans import box as b
from tests.support.handmade_plans import two_site_plan

PLAN = two_site_plan()


BIG = 1 << 62
FIRST = Region(0, PLAN.buffers[0].block)
LIES = [
    # field, the lie, the part that is named, a piece of the message
    ("producer", "", "producer", "printable"),
    ("producer", "x" * 1025, "producer", "printable"),
    ("model", "a\x1b[31m", "model", r"\x1b"),
    ("model", "a\u202eb", "model", "printable"),
    ("machine", "\n", "machine", "printable"),
    ("selector", "", "selector", "printable"),
    ("schedule", "\0", "schedule", "printable"),
    ("machine_file", "\x07", "machine_file", "control"),
    ("machine_file", "x" * (32 << 20 | 1), "machine_file", "at most"),
    ("devices", (), "devices", "0 devices"),
    ("devices", (0, 0), "devices", "twice"),
    ("devices", (0, -1), "devices", "between"),
    ("devices", (0, BIG), "devices", "between"),
    ("devices", tuple(range(5000)), "devices", "5000 devices"),
    ("devices", (0, 1, 2), "memory", "2 arena sizes for 3 sites"),
    ("memory", (), "memory", "arena sizes"),
    ("memory[0]", -1, "memory[0]", "between"),
    ("memory[0]", 1 << 51, "memory[0]", "between"),
    ("memory[1]", 10, "buffers", "outside the arena"),
    ("total_cost", 7, "total_cost", "operations cost 6"),
    ("predicted_ms", -0.5, "predicted_ms", "not a duration"),
    ("predicted_ms", float("inf"), "predicted_ms", "not a duration"),
    ("predicted_ms", float("nan"), "predicted_ms", "not a duration"),
    ("operations[0].functions[0].flops", -1, "operations[0].functions[0].flops", "between"),
    ("operations[1].functions[0].traffic", 1 << 63, "operations[1].functions[0].traffic", "between"),
    ("operations[1].functions[0].work", ProductWork(1, 4, -2, 3), "operations[1].functions[0].work.columns", "between"),
    ("operations[0].functions[0].work", RecurrenceWork(8, 1, 2, -1, 0), "operations[0].functions[0].work.levels",
     "between"),
    ("operations[0].functions[0].work", ExpertsWork(-1, 1, 2, 3), "operations[0].functions[0].work.experts", "between"),
    ("tensors[0].name", "", "tensors[0].name", "printable"),
    ("tensors[0].name", "w", "tensors", "'w' occurs here twice"),
    ("tensors[0].dims", ("i",), "tensors[0]", "1 names for 2"),
    ("tensors[0].dims[1]", "\t", "tensors[0].dims", "printable"),
    ("tensors[0].shape[0]", 0, "tensors[0].shape", "at least 1"),
    ("tensors[0].shape[0]", -4, "tensors[0].shape", "at least 1"),
    ("tensors[0].shape", (BIG, BIG), "tensors[0].shape", "between"),
    ("tensors[0].shape[0]", 2, "operations[0].outputs", "where equation"),
    ("tensors[3].shape[0]", 5, "operations[1].outputs", "where equation"),
    ("tensors[0].shape", (1,) * 33, "tensors[0].shape", "at most 32"),
    ("tensors[0].fan_in", 0, "tensors[0].fan_in", "1 or more"),
    ("tensors[0].fan_in", 1 << 63, "tensors[0].fan_in", "1 or more"),
    ("tensors[0].stored", "", "tensors[0].stored", "printable"),
    ("tensors[0].order", (1, 0), "tensors[0].order", "only values may have another order"),
    ("tensors[2].order", (0, 0), "tensors[2].order", "every dimension exactly once"),
    ("tensors[2].order", (0, 2), "tensors[2].order", "every dimension exactly once"),
    ("tensors[2].order", (0,), "tensors[2].order", "every dimension exactly once"),
    ("tensors[3].order", (1, 0), "outputs[0].tensor", "dimensions in the declared order"),
    ("tensors[0].kind", "value", "operations[0].inputs", "before it is computed"),
    ("tensors[2].kind", "input", "operations[0].outputs", "loaded elsewhere"),
    ("tensors[1].kind", "input", "buffers[1].role", "weight buffer of a input"),
    ("tensors", lambda t: (*t, Tensor("z", (), (), "f32", "value")), "tensors[4]", "no operation computes"),
    ("operations[0].pin", "a\x1b[31m", "operations[0].pin", r"\x1b"),
    ("operations[0].parts", 0, "operations[0].parts", "0 parts"),
    ("operations[0].parts", BIG, "operations[0].parts", "parts"),
    ("operations[0].later", (None,), "operations[0].later", "1 later exchanges of 1 parts"),
    ("outputs[0].later", (None,) * 4096, "outputs[0].later", "4096 exchanges"),
    ("operations[0].replicas", 0, "operations[0].replicas", "0 replicas"),
    ("operations[0].replicas", -1, "operations[0].replicas", "-1 replicas"),
    ("operations[0].replicas", BIG, "operations[0].replicas", "replicas"),
    ("operations[0].replicas", 2, "operations[0].functions", "2 functions, where the intervals ask for 4"),
    ("operations[1].name", "a", "operations", "twice"),
    ("operations[0].name", "z", "tasks[0].serves", "no operation or output"),
    ("operations[0].title", "", "operations[0].title", "printable"),
    ("operations[0].family", "\r", "operations[0].family", r"no operator family '\r'"),
    ("operations[0].kernel", "x\0", "operations[0].kernel", "where equation"),
    ("operations[0].source", "a\nb", "operations[0].source", "printable"),
    ("operations[0].attributes", {"": 1}, "operations[0].attributes", "printable"),
    ("operations[0].attributes", {"a": float("nan")}, "operations[0].attributes['a']", "not a number"),
    ("operations[0].attributes", {"a": [1, float("nan")]}, "operations[0].attributes['a']", "not a number"),
    ("operations[0].attributes", {"a": 1 << 63}, "operations[0].attributes['a']", "64 bits"),
    ("operations[0].kernel_attributes", {"a": "\x1b"}, "operations[0].kernel_attributes['a']", "has nothing"),
    ("operations[0].kernel_attributes", {"a": "x" * (1 << 20 | 1)}, "operations[0].kernel_attributes['a']", "nothing"),
    ("operations[0].inputs[0]", 9, "operations[0].inputs", "no tensor 9"),
    ("operations[0].inputs[0]", -1, "operations[0].inputs", "no tensor -1"),
    ("operations[0].inputs[0]", 3, "operations[0].inputs", "before it is computed"),
    ("operations[0].inputs", (0,), "operations[0] ('a')", "an equation of 2 operands is applied to 1"),
    ("operations[0].outputs[0]", 0, "operations[0].outputs", "loaded elsewhere"),
    ("operations[1].outputs[0]", 2, "operations[1].outputs", "computed or loaded elsewhere"),
    ("operations[0].outputs", (), "operations[1].inputs", "before it is computed"),
    ("operations[0].outputs", (2, 3), "operations[1].outputs", "computed or loaded elsewhere"),
    ("operations[0].aggregations", (), "operations[0].aggregations", "where equation"),
    ("operations[0].aggregations", ("max",), "operations[0].aggregations", "where equation"),
    ("operations[0].cost", Cost(-1, 1, 1), "operations[0].cost.repartition", "between"),
    ("operations[0].cost.join", 1 << 63, "operations[0].cost.join", "between"),
    ("operations[0].exchange", Exchange("\0"), "operations[0].exchange.program", "control"),
    ("operations[0].exchange", Exchange("", completion_ms=-1.0), "operations[0].exchange.completion_ms", "duration"),
    ("operations[0].exchange", Exchange("", naive_ms=float("inf")), "operations[0].exchange.naive_ms", "duration"),
    ("operations[0].exchange", Exchange("", bound_ms=float("nan")), "operations[0].exchange.bound_ms", "duration"),
    ("operations[0].exchange", Exchange("", bound_free_ms=-0.1), "operations[0].exchange.bound_free_ms", "duration"),
    ("operations[0].exchange", Exchange("", bound_by="\x1b[2J"), "operations[0].exchange.bound_by", "printable"),
    ("operations[0].exchange", Exchange("", splits={"X1": 1}), "operations[0].exchange.splits", "1 pieces of X1"),
    ("operations[0].exchange", Exchange("", splits={"X\n": 2}), "operations[0].exchange.splits", "printable"),
    ("operations[0].indices", (), "operations[0].indices", "where equation"),
    ("operations[0].indices", lambda i: (*i, i[0]), "operations[0].indices", "where equation"),
    ("operations[0].indices[0].name", "", "operations[0].indices", "where equation"),
    ("operations[0].indices[0].extent", 5, "operations[0].indices", "where equation"),
    ("operations[0].indices[0].extent", 0, "operations[0].indices", "where equation"),
    ("operations[0].indices[0].extent", BIG, "operations[0].indices", "where equation"),
    ("operations[0].indices[1].intervals", (), "operations[0].indices[1].intervals", "0 intervals"),
    ("operations[0].indices[1].intervals", ((0, 2), (1, 3)), "operations[0].indices[1].intervals", "out of place"),
    ("operations[0].indices[1].intervals", ((0, 0), (0, 3)), "operations[0].indices[1].intervals", "out of place"),
    ("operations[0].indices[1].intervals", ((-1, 1), (1, 3)), "operations[0].indices[1].intervals", "out of place"),
    ("operations[0].indices[1].intervals", ((0, 3),), "operations[0].functions", "2 functions"),
    ("operations[0].indices[1].cuts", (2,), "operations[0].indices", "where equation"),
    ("operations[0].indices[1].cuts", (1, 1), "operations[0].indices", "where equation"),
    ("operations[0].indices[1].cuts", (0, 1), "operations[0].indices", "where equation"),
    ("operations[0].indices[1].cuts", (1, 3), "operations[0].indices", "where equation"),
    ("operations[0].functions", lambda f: f[:1], "operations[0].functions", "1 functions"),
    ("operations[0].functions[0].site", 2, "operations[0].functions[0].site", "no site 2"),
    ("operations[0].functions[0].site", -1, "operations[0].functions[0].site", "no site -1"),
    ("operations[0].functions[0].site", 0, "operations[0].functions, by site", "twice"),
    ("operations[0].functions[0].inputs[0]", b((0, 4)), "operations[0].functions[0].inputs[0]", "dimensions"),
    ("operations[0].functions[0].inputs[0]", Block((0, 0), (4,)), "operations[0].functions[0].inputs[0]", "dimensions"),
    ("operations[0].functions[0].inputs[0]", b((0, 5), (0, 1)), "operations[0].functions[0].inputs[0]", "not inside"),
    ("operations[0].functions[0].inputs[0]", b((-1, 4), (0, 1)), "operations[0].functions[0].inputs[0]", "not inside"),
    ("operations[0].functions[0].inputs[0]", b((1, 1), (0, 1)), "operations[0].functions[0].inputs[0]", "not inside"),
    ("operations[0].functions[0].inputs[0]", b((3, 1), (0, 1)), "operations[0].functions[0].inputs[0]", "not inside"),
    ("operations[0].functions[0].inputs[0]", b((1, 4), (0, 1)), "operations[0].functions[0].inputs[0] ('a')", "give"),
    ("operations[1].functions[1].outputs[0]", b((1, 4), (0, 2)), "operations[1].functions", "do not tile"),
    ("operations[1].functions[1].outputs[0]", b((3, 4), (0, 2)), "operations[1].functions", "do not tile"),
    ("operations[1].functions[1].outputs[0]", b((2, 4), (0, 1)), "operations[1].functions", "cannot tile"),
    ("operations[1].functions[1].outputs", (), "operations[1].functions[1].outputs", "0 blocks"),
    ("buffers[0].site", 2, "buffers[0].site", "no site 2"),
    ("buffers[0].site", 0, "buffers", "outside the arena|shares bytes|at site"),
    ("buffers[0].tensor", 4, "buffers[0].tensor", "no tensor 4"),
    ("buffers[0].tensor", -1, "buffers[0].tensor", "no tensor -1"),
    ("buffers[0].block", b((0, 5), (0, 1)), "buffers[0].block", "not inside"),
    ("buffers[0].block", b((0, 4)), "buffers[0].block", "dimensions"),
    ("buffers[0].block", b((0, 3), (0, 1)), "tasks[0].reads[0]", "not inside"),
    ("buffers[0].role", "weight", "buffers[0].role", "weight buffer of a input"),
    ("buffers[2].role", "input", "buffers[2].role", "input buffer of a value"),
    ("buffers[0].role", "scratch", "tasks[0].reads[0]", "no earlier task writes"),
    ("buffers[0].offset", -4, "buffers[0]", "outside the arena"),
    ("buffers[0].offset", BIG, "buffers[0]", "outside the arena"),
    ("buffers[0].offset", 1 << 48, "buffers[0]", "outside the arena"),
    ("buffers[2].offset", lambda o: o - 4, "buffers", "shares bytes"),
    ("buffers[2].offset", lambda o: o + 2, "buffers[2].offset", "no multiple of 4"),
    ("tasks[0].site", 2, "tasks[0].site", "no site 2"),
    ("tasks[0].site", 0, "tasks[0].reads[0]", "at site 1, and the task runs at 0"),
    ("tasks[0].serves", "\x1b", "tasks[0].serves", r"'\x1b' is no operation"),
    ("tasks[3].after", (1, 3), "tasks[3].after", "3 is not in ascending order below 3"),
    ("tasks[3].after", (2, 1), "tasks[3].after", "1 is not in ascending order"),
    ("tasks[3].after", (1, 1), "tasks[3].after", "1 is not in ascending order"),
    ("tasks[3].after", (-1,), "tasks[3].after", "-1 is not in ascending order"),
    ("tasks[3].after", (BIG,), "tasks[3].after", "not in ascending order"),
    ("tasks[0].operation", 2, "tasks[0].operation", "no operation 2"),
    ("tasks[0].operation", -1, "tasks[0].operation", "no operation -1"),
    ("tasks[0].operation", 1, "tasks[0].site|tasks[0].reads", "function"),
    ("tasks[0].function", 2, "tasks[0].function", "no function 2"),
    ("tasks[0].function", 1, "tasks[0].site", "the function's is 0"),
    ("tasks[0].reads", lambda r: r[:1], "tasks[0].reads", "1 regions, where the function has 2"),
    ("tasks[0].reads", lambda r: r[::-1], "tasks[0].reads[0]", "tensor 1, where the function takes 0"),
    ("tasks[0].reads[0].buffer", 16, "tasks[0].reads[0]", "no buffer 16"),
    ("tasks[0].reads[0].buffer", -1, "tasks[0].reads[0]", "no buffer -1"),
    ("tasks[0].reads[0].block", b((0, 4), (0, 2)), "tasks[0].reads[0]", "not inside"),
    ("tasks[0].reads[0].block", b((0, 3), (0, 1)), "tasks[0].reads[0]", "where the function takes [0:4, 0:1]"),
    ("tasks[0].reads[0].block", b((0, 0), (0, 1)), "tasks[0].reads[0]", "not inside"),
    ("tasks[0].writes", (), "tasks[0].writes", "0 regions"),
    ("tasks[0].writes[0].block", b((0, 3), (0, 2)), "tasks[0].writes[0]", "where the function takes"),
    ("tasks[0].writes[0].buffer", 0, "tasks[0].writes[0]", "not inside"),
    ("tasks[2].read.block", b((0, 1), (0, 2)), "tasks[2]", "it reads [0:1, 0:2] and writes [0:2, 0:2]"),
    ("tasks[2].read.buffer", 9, "tasks[2].read", "not inside|no earlier"),
    ("tasks[2].write.buffer", 0, "tasks[2].write", "not inside"),
    ("tasks[2].write.buffer", 16, "tasks[2].write", "no buffer 16"),
    ("tasks[2].write", Region(2, b((0, 2), (0, 2))), "tasks[2].write", "from site 1 to itself"),
    ("tasks[2].write", Region(8, b((0, 2), (0, 2))), "tasks[2]", "reads tensor 2 and writes tensor 3"),
    ("tasks[2].site", 0, "tasks[2].read", "at site 1, and the task runs at 0"),
    ("tasks[3].reads", lambda r: r[:1], "tasks[3].reads", "not two or more copies"),
    ("tasks[3].reads", (), "tasks[3].reads", "not two or more copies"),
    ("tasks[3].reads[0].block", b((0, 1), (0, 2)), "tasks[3]", "it reads"),
    ("tasks[3].writes[0].buffer", 2, "tasks[3].writes[0]", "at site 1"),
    ("tasks[3].writes[0].buffer", 8, "tasks[3]", "it reads tensor 2 and writes tensor 3"),
    ("tasks[3].aggregation", "max", "tasks[3]", "max, where the tensor's is sum"),
    ("tasks[9].reads", (), "tasks[9]", "0 reads, 1 writes"),
    ("tasks[9].writes", lambda w: (*w, *w), "tasks[9]", "1 reads, 2 writes"),
    ("tasks[9].reads[0].block", b((0, 1), (0, 2)), "tasks[9]", "it reads"),
    ("tasks[9]", CopyTask(1, "y", (), (FIRST,), (FIRST,)), "tasks[9].writes[0]", "writes the input buffer 0"),
    ("tasks", lambda t: t[:-6], "operations|outputs", ""),
    ("tasks", lambda t: (*t[:4], t[1], *t[4:]), "tasks[4]", "runs twice"),
    ("tasks", lambda t: tuple(x for x in t if not isinstance(x, TransferTask)), "tasks", ""),
    ("tasks", lambda t: t[:1] + t[2:3], "operations[0]", "no task runs its function 1"),
    ("tasks", lambda t: (*t, FenceTask(0, "nothing", ())), "tasks[12].serves", "'nothing' is no operation"),
    ("outputs[0].tensor", 4, "outputs[0].tensor", "no tensor 4"),
    ("outputs[0].tensor", 2, "tasks|outputs[0].regions[0]", "tensor|serves"),
    ("outputs", lambda o: (*o, *o), "outputs", "twice"),
    ("outputs[0].regions", (), "outputs[0].regions", "is in none of them"),
    ("outputs[0].regions", lambda r: r[:1], "outputs[0].regions", "is in none of them"),
    ("outputs[0].regions", lambda r: (*r, r[0]), "outputs[0].regions", "twice"),
    ("outputs[0].regions[0].buffer", 16, "outputs[0].regions[0]", "no buffer 16"),
    ("outputs[0].regions[0].buffer", 8, "outputs[0].regions[0]", "buffer 8 is scratch"),
    ("outputs[0].regions[0].buffer", 6, "outputs[0].regions[0]", "tensor 2, not 3"),
    ("outputs[0].regions[0].block", b((0, 1), (0, 2)), "outputs[0].regions", "is in none of them"),
    ("outputs[0].regions[0].block", b((0, 3), (0, 2)), "outputs[0].regions[0]", "not inside"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "lie", "where", "message"), LIES, ids=[f"{lie[0]}-{n}" for n, lie in enumerate(LIES)])
def test_a_lie_is_found_and_named(path, lie, where, message):
    plan = changed(PLAN, parse(path), lie)
    assert plan != PLAN or "nan" in repr(plan)
    with pytest.raises(PlanFault) as caught:
        validate(plan)
    places = where.split("|")
    assert any(
        caught.value.where == location or caught.value.where.startswith(f"{location}[") for location in places
    ), caught.value.render()
    assert any(part in caught.value.message for part in message.split("|")), caught.value.render()
    assert caught.value.message.isprintable()


def test_whatever_is_optional_may_be_there_or_not():
    """Every optional text and number, present and right, and absent."""
    valid = PLAN
    exchange = Exchange("", completion_ms=1.0, bound_ms=0.5, bound_free_ms=0.25, bound_by="its links", splits={"X1": 2})
    for path, value in {
        "operations[0].exchange": exchange,
        "operations[1].exchange": Exchange(""),
        "operations[0].source": "m.ein:3",
        "operations[0].pin": "i/2",
        "tensors[0].stored": "x.0",
        "tensors[2].order": (1, 0),
        "outputs[0].exchange": Exchange(""),
    }.items():
        valid = changed(valid, parse(path), value)
    validate(valid)
    assert decode(encode(valid)) == valid


def loaded_once(*blocks):
    """The plan, which loads every element at one site, with more buffers of the input."""
    more = [Buffer(0, PLAN.memory[0] + 64 * n, 0, block, "input") for n, block in enumerate(blocks)]
    grown = changed(PLAN, ["memory", 0], PLAN.memory[0] + 64 * len(blocks))
    return msgspec.structs.replace(grown, buffers=(*PLAN.buffers, *more), input_placement="once")


def test_a_plan_of_inputs_at_one_site_loads_no_element_twice():
    loaded = [(n, x) for n, x in enumerate(PLAN.buffers) if x.tensor == 0 and x.role == "input"]
    validate(loaded_once())
    for number, buffer in loaded:
        lower = (buffer.block.lower[0] + 1, buffer.block.lower[1])
        with pytest.raises(PlanFault, match=f"that buffer {number} is loaded with") as caught:
            validate(loaded_once(Block(lower, buffer.block.upper)))
        assert caught.value.where == f"buffers[{len(PLAN.buffers)}]"
        validate(msgspec.structs.replace(loaded_once(Block(lower, buffer.block.upper)), input_placement="replicated"))


@pytest.mark.parametrize(("path", "lie", "where", "message"), LIES[::7])
def test_a_lie_is_found_on_the_wire_too(path, lie, where, message):
    with pytest.raises(PlanFault):
        decode(encode(changed(PLAN, parse(path), lie)))
