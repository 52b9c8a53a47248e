"""The kernel `map` in Triton: a fused chain of scalar functions over joined indices, with broadcasts and transposes.

Aggregations of copies are maps too: a chain of additions in the order of the plan, in f32 or wider, rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.errors import PlanFault
from runtime.kernels import indices, program
from runtime.kernels.base import dtype_name, single, text
from runtime.kernels.pieces import merged
from runtime.kernels.program import Typed
from runtime.kernels.triton_scalar import Program
from runtime.kernels.triton_source import LANGUAGE, Call, Plan, assembled, operands, wide
from runtime.kernels.triton_tiles import elementwise

_STEPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def plan_map(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block] = (),
    output_blocks: Sequence[Block] = (),
) -> Plan:
    """One launch. Raises PlanFault for what is no map."""
    allowed = ("program", "indices")
    output = single(outputs)
    equation = indices.parse(text(attributes, allowed, "indices"))
    joined = indices.join(equation, inputs, output)
    missing = sorted(set(joined.extents) - set(equation.output))
    if missing:
        raise PlanFault(f"a map's result lacks the index '{missing[0]}'; a reduce would aggregate over it")
    source = text(attributes, allowed, "program")
    steps = program.infer(program.parse(source, len(inputs)), [dtype_name(x) for x in inputs], dtype_name(output))
    views = [indices.aligned(v, n, equation.output) for v, n in zip(joined.views, joined.inputs, strict=True)]
    call = elementwise_call(steps, views, output, f"map over {' '.join(equation.output) or 'one element'}: {source}")
    return Plan((call,))


def plan_aggregate(aggregation: str, reads: Sequence[Array], write: Array) -> Plan:
    """The chain of additions (or the like) over views in their order."""
    if aggregation not in _STEPS:
        raise PlanFault(f"views cannot be aggregated by '{aggregation[:40]}'", hint=f"there are {', '.join(_STEPS)}")
    step = _STEPS[aggregation]
    chain = [f"t{k} = {step} {f't{k - 1}' if k else 'x0'} x{k + 1}" for k in range(len(reads) - 1)]
    dims = " ".join(f"i{axis}" for axis in range(write.ndim))
    equation = f"{', '.join([dims] * len(reads))} -> {dims}"
    return plan_map({"program": "; ".join(chain) or "t0 = copy x0", "indices": equation}, reads, [write])


def elementwise_call(steps: Sequence[Typed], views: Sequence[Array], output: Array, title: str) -> Call:
    """Typed steps over views of the output's rank, of extent 1 where they are broadcast."""
    kinds = [dtype_name(view) for view in (*views, output)]
    layouts, _ = merged([*views, output], [False] * output.ndim)
    items = operands(layouts, kinds, [*(f"x{k}" for k in range(len(views))), "y"])
    *reads, target = items
    extents = layouts[-1].shape
    tiles = elementwise(extents, reads, target)
    chain = Program(steps, [f"v{k}" for k in range(len(views))])
    lines = tiles.locate(wide(items, extents))
    used = {operand.position for step in steps for operand in step.operands if isinstance(operand, program.Input)}
    for k, item in enumerate(reads):
        if k in used:
            subscripts = tiles.subscripts(item)
            mask = tiles.mask(subscripts)
            lines.append(
                f"v{k} = tl.load({item.at(subscripts)}{f', mask={mask}, other=0' if mask else ''}){item.load_suffix}"
            )
    lines += chain.lines
    subscripts = tiles.subscripts(target)
    mask = tiles.mask(subscripts)
    stored = "tl.int8" if target.dtype == "bool" else LANGUAGE[target.dtype]
    lines.append(f"tl.store({target.at(subscripts)}, {chain.value}.to({stored}){f', mask={mask}' if mask else ''})")
    return assembled("map", title, items, extents, lines, tiles.count(), chain.source())
