"""The Python API of the paper's Section 2, with a few operators more that Python programs need.

It builds the same graph as the model language. Names are camelCase because the paper's are; no
other file follows it. Dimensions are matched by position, as in numpy, since arrays have no named ones.

    import einc as es
    graph = es.createGraph()
    x = graph.insertTensor(es.tensorDesc([64, 64], "f32"))
    y = graph.matmul(x, x)
    graph.save(y)
    es.compileGraph(graph, machine="dgx-a100")
    graph.load(x, array)
    graph.execute()
    result = graph.offload(y)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError, UsageError
from einc.graph.builder import GraphBuilder
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc.ops.scalar import Operand, ProgramBuilder, ScalarInput, make_step
from einc.options import BASELINES, INPUT_PLACEMENTS, SCHEDULES, CompileOptions

if TYPE_CHECKING:
    import numpy as np

    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle, InputPlacement

    Array = np.ndarray[Any, np.dtype[Any]]

_MAX_EXTENT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a graph: what `insertTensor` and the operators return."""

    graph: Graph
    name: str
    desc: TensorDesc

    @property
    def shape(self) -> tuple[int, ...]:
        return self.desc.shape

    @property
    def dtype(self) -> str:
        return self.desc.dtype.value

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {self.dtype}{list(self.shape)})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled graph: `bundle` is everything that `einc run` and `einc explain` need."""

    bundle: Bundle

    def __repr__(self) -> str:
        bundle = self.bundle
        where = f"{len(bundle.devices)} sites of {bundle.machine}"
        return f"<plan of {bundle.model} for {where}, cost {bundle.total_cost:,}>"

    @property
    def cost(self) -> int:
        """The paper's proxy of communication, in elements."""
        return self.bundle.total_cost

    def toBytes(self) -> bytes:
        from einc_runtime.plan.codec import encode

        return encode(self.bundle)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file."""
        with open(path, "wb") as file:
            file.write(self.toBytes())


class Graph:
    """A computation: first it is built, then compiled, then run."""

    def __init__(self, name: str = "graph") -> None:
        self._builder = GraphBuilder(name)
        self._plan: Plan | None = None
        self._session: Session | None = None
        self._missing: set[str] = set()
        self._executed = False
        self._saved: list[str] = []

    # Building

    def insertTensor(self, desc: TensorDesc, name: str | None = None) -> Tensor:
        """An input of the computation, to be filled by `load`."""
        if not isinstance(desc, TensorDesc):
            raise UsageError(f"insertTensor takes what tensorDesc returns, not {desc!r:.80}")
        self._require_open()
        asked = self._builder.unique_name("x") if name is None else name
        if not asked:
            raise UsageError("a tensor's name cannot be empty")
        name = self._builder.input(asked, desc)
        return Tensor(self, name, desc)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of two matrices; leading dimensions are batch dimensions."""
        return self._apply(registry.call("matmul", self._descs(a, b), {}), (a, b))

    def unary(self, x: Tensor, function: str, value: float = 0.0) -> Tensor:
        """A scalar function of every element: "relu", "gelu", "silu", "exp", ...

        `value` is the threshold of "relu" (0.0 as usual), and the second operand of "add", "mul", "pow", "max" and the
        like; other functions do not use it.
        """
        (desc,) = self._descs(x)
        if function in ("add", "sub", "mul", "div", "pow", "max", "min") or (function == "relu" and value != 0):
            literal = int(value) if not desc.dtype.is_float and float(value).is_integer() else value
            return self._apply(registry.call("max" if function == "relu" else function, (desc, literal), {}), (x,))
        if value != 0:
            raise UsageError(f"unary function '{function}' takes no value, and {value} was given")
        return self._apply(registry.call(function, (desc,), {}), (x,))

    def binary(self, a: Tensor, b: Tensor, function: str) -> Tensor:
        """A scalar function of two elements: "add", "sub", "mul", "div", "max", "min", "pow", "lt", ...

        Dimensions are matched from the last one backwards; a tensor with fewer dimensions is repeated over the rest.
        """
        descs = self._descs(a, b)
        rank = max(desc.rank for desc in descs)
        labels = [tuple(f"i{d}" for d in range(rank - desc.rank, rank)) for desc in descs]
        wide, names = next((d, n) for d, n in zip(descs, labels, strict=True) if d.rank == rank)
        program = make_step(function, ScalarInput(0), ScalarInput(1))
        dims = list(zip(names, wide.dims, strict=True))
        return self._apply(build_equation(list(zip(descs, labels, strict=True)), dims, program, None), (a, b))

    def reduce(self, x: Tensor, aggregation: str, axes: int | Sequence[int]) -> Tensor:
        """The "sum", "max", "min" or "prod" over some dimensions, which the result does not have."""
        (desc,) = self._descs(x)
        gone = [_resolve_axis(axis, desc) for axis in ([axes] if isinstance(axes, int) else axes)]
        if len(set(gone)) < len(gone):
            raise OperatorError(f"an axis of {desc} is named twice in {axes!r:.80}")
        labels = tuple(f"i{d}" for d in range(desc.rank))
        kept = [(label, desc.dims[d]) for d, label in enumerate(labels) if d not in gone]
        return self._apply(build_equation([(desc, labels)], kept, make_step("copy", ScalarInput(0)), aggregation), (x,))

    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """The softmax along one dimension."""
        (desc,) = self._descs(x)
        return self._apply(registry.call("softmax", (desc, desc.dims[_resolve_axis(axis, desc)]), {}), (x,))

    def einsum(self, equation: str, *tensors: Tensor) -> Tensor:
        """A product of tensors, summed over the indices that are not on the right side: "ij,jk->ik"."""
        descs = self._descs(*tensors)
        left, arrow, right = equation.replace(" ", "").partition("->")
        labels = [tuple(term) for term in left.split(",")]
        if not arrow or len(labels) != len(tensors):
            raise UsageError(f"'{equation}' does not say how {len(tensors)} tensors meet", hint='write "ij,jk->ik"')
        program = ProgramBuilder(len(tensors))
        product: Operand = ScalarInput(0)
        for k in range(1, len(tensors)):
            product = program.add("mul", product, ScalarInput(k))
        result = [(label, f"d{d}") for d, label in enumerate(right)]
        inputs = list(zip(descs, labels, strict=True))
        return self._apply(build_equation(inputs, result, program.program(product), "sum"), tensors)

    def save(self, tensor: Tensor) -> None:
        """Mark a computed tensor as an output of the plan."""
        self._descs(tensor)
        self._builder.save(tensor.name)
        self._saved.append(tensor.name)

    # Running

    def load(self, tensor: Tensor, array: Any) -> None:
        """Give an input its values, which stay until it is loaded again.

        The array must have the tensor's shape and dtype; float32 is rounded for a bf16 tensor.
        """
        session = self._require_session("load")
        self._require_own(tensor)
        session.load(tensor.name, array)
        self._missing.discard(tensor.name)
        self._executed = False

    def execute(self) -> float:
        """Run the plan; returns the time it took in milliseconds."""
        session = self._require_session("execute")
        if self._missing:
            raise UsageError(f"execute before load: nothing was loaded for {', '.join(sorted(self._missing))}")
        took = session.execute()
        self._executed = True
        return took

    def offload(self, tensor: Tensor) -> Array:
        """The values of a saved tensor after execution."""
        session = self._require_session("offload")
        self._require_own(tensor)
        if tensor.name not in self._saved:
            raise UsageError(f"'{tensor.name}' was not saved", hint="call graph.save(tensor) before compileGraph")
        if not self._executed:
            raise UsageError("offload before execute: the loaded inputs have not been computed with yet")
        return session.offload(tensor.name)

    # Helpers

    def _apply(self, operator: Operator, tensors: Sequence[Tensor]) -> Tensor:
        (name,) = self._builder.apply(operator, [tensor.name for tensor in tensors])
        return Tensor(self, name, self._builder.desc(name))

    def _descs(self, *tensors: Tensor) -> tuple[TensorDesc, ...]:
        self._require_open()
        for tensor in tensors:
            self._require_own(tensor)
        return tuple(tensor.desc for tensor in tensors)

    def _require_own(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise UsageError(f"expected a tensor of this graph, not {type(tensor).__name__}")
        if tensor.graph is not self:
            raise UsageError(f"'{tensor.name}' belongs to another graph")

    def _require_open(self) -> None:
        if self._plan is not None:
            raise UsageError(
                "the graph is compiled already, and cannot be added to", hint="start another createGraph()"
            )

    def _require_session(self, what: str) -> Session:
        if self._plan is None:
            raise UsageError(f"{what} before compileGraph: the graph has no plan yet")
        if self._session is None:
            from einc_runtime.execution.session import Session as RuntimeSession

            self._session = RuntimeSession(self._plan.bundle)
        return self._session

    def _compile(self, options: CompileOptions) -> Plan:
        from einc.compiler import Compiled

        if not self._saved:
            raise UsageError("nothing was saved: a graph without outputs computes nothing", hint="call graph.save(y)")
        bundle = Compiled(self._builder.build(), options).bundle
        self._session = None
        self._executed = False
        self._missing = {tensor.name for tensor in bundle.tensors if tensor.kind == "input"}
        self._plan = Plan(bundle)
        return self._plan


def createGraph(name: str = "graph") -> Graph:
    """An empty computation."""
    return Graph(name)


def tensorDesc(shape: Sequence[int], dtype: Any = "f32") -> TensorDesc:
    """The shape and element type of an input; `dtype` is a name ("f16", "float16") or a numpy type."""
    if not isinstance(shape, Iterable):
        raise UsageError(f"a shape is a list of dimensions, not {shape!r:.80}")
    extents = []
    for extent in shape:
        if isinstance(extent, bool) or not hasattr(extent, "__index__"):
            raise UsageError(f"a dimension must be an integer, not {extent!r:.80}")
        number = int(extent.__index__())
        if not 1 <= number <= _MAX_EXTENT:
            raise UsageError(f"a dimension must be at least 1 and fit 63 bits, not {number}")
        extents.append(number)
    return TensorDesc(tuple(f"d{d}" for d in range(len(extents))), tuple(extents), _parse_dtype(dtype))


def compileGraph(
    graph: Graph,
    device: Sequence[int] | int | None = None,
    schedule_mode: str = "synthesized",
    *,
    machine: str | None = None,
    selector: str = "eindecomp",
    seed: int = 0,
    memory: int | None = None,
    pins: Mapping[str, str] | None = None,
    baselines: Sequence[str] = (),
    input_placement: InputPlacement = "replicated",
) -> Plan:
    """Plan a graph for a machine, keep the plan on the graph and return it.

    `device` names sites of the machine, or how many of them. Without a `machine` the plan is for the visible GPUs, or
    for this host's cores if there are none. `schedule_mode` is "synthesized", which the paper calls "ai", or "naive".
    The plan takes at most `memory` bytes of each site. `pins` fix how operators are cut, by patterns of the names of
    their outputs: {"hidden*": "tokens/2,d_ff/4"}; later patterns go first. Of the plan and the `baselines` ("single",
    "data", "sequence", "megatron") the fastest is taken. `input_placement` says where inputs lie before the clock
    starts: "replicated", every site has what it reads, or "once", every block lies on one site and is moved from there.
    Compiling again makes a new plan of the same graph.
    """
    if schedule_mode not in SCHEDULES:
        raise UsageError(f"schedule_mode is 'synthesized' (the paper's 'ai') or 'naive', not {schedule_mode!r:.80}")
    if input_placement not in INPUT_PLACEMENTS:
        raise UsageError(f"input_placement is {' or '.join(map(repr, INPUT_PLACEMENTS))}, not {input_placement!r:.80}")
    from einc.logical.pins import parse_pin

    devices = device if device is None or isinstance(device, int) else tuple(device)
    for name in [baselines] if isinstance(baselines, str) else baselines:
        if name not in BASELINES:
            raise UsageError(f"{name!r:.80} is no baseline", hint=f"baselines is a list of {', '.join(BASELINES)}")
    options = CompileOptions(
        machine=machine,
        devices=devices,
        selector=selector,
        schedule=schedule_mode,
        seed=seed,
        memory=memory,
        pins=tuple(parse_pin(f"{pattern}={cut}") for pattern, cut in (pins or {}).items()),
        baselines=tuple(baselines),
        input_placement=input_placement,
    )
    return graph._compile(options)


def _resolve_axis(axis: int, desc: TensorDesc) -> int:
    if not -desc.rank <= axis < desc.rank:
        raise OperatorError(f"there is no axis {axis} in {desc}")
    return axis % desc.rank


def _parse_dtype(dtype: Any) -> DType:
    if isinstance(dtype, DType):
        return dtype
    known = {member.value: member for member in DType}
    numpy_names = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int32": "i32",
                   "int64": "i64", "bool_": "bool"}  # fmt: skip
    given = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", "")
    name = numpy_names.get(str(given), str(given))
    if name not in known:
        raise UsageError(f"unknown dtype {dtype!r:.80}", hint=f"dtypes are {', '.join(known)}")
    return known[name]
