"""Every operator of the library as a method of a graph.

`call` is the call of the language: it aligns dimensions by their names. The other methods match them by position, as
numpy does, and say in Python what the language says with names of dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from einc.api.arguments import Number, Shape, check_name, check_size, read_dtype, read_number, read_shape, resolve_axis
from einc.api.tensor import Tensor, read_slices
from einc.core.tensor import TensorDesc, TensorType
from einc.errors import OperatorError, UsageError
from einc.graph.builder import GraphBuilder
from einc.ops import registry
from einc.ops.arguments import Argument, make_unique
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc.ops.functions import AGGREGATIONS
from einc.ops.scalar import ProgramBuilder, make_step
from einc.ops.shorthands import cut_out
from einc_runtime.errors import PlanFault
from einc_runtime.plan.index_equations import parse_letters
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS
from einc_runtime.plan.scalar_programs import Operand, ScalarInput
from einc_runtime.text import did_you_mean


class GraphOperators:
    """A graph under construction. Every method takes `name`, the preferred name of its (first) result."""

    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name)
        self._names: dict[str, str] = {}

    # Calls as in the language

    def call(self, operator: str, *arguments: Any, name: str | Sequence[str] | None = None, **keywords: Any) -> Any:
        """What the call `operator(*arguments, **keywords)` means in the language: a tensor, or a tuple of several.

        Dimensions are aligned by name. Arguments are tensors, numbers, strings, and lists of numbers or strings. What
        the library defines in the language (`einc library list`) is called so, too.
        """
        if not registry.is_callable(operator):
            from einc.frontend.shared_blocks import list_library

            if operator in list_library():
                names = [] if name is None else [name] if isinstance(name, str) else list(name)
                return self._call_library(operator, arguments, keywords, names)
        values = [self._convert(value) for value in arguments]
        attributes = {key: self._convert(value) for key, value in keywords.items()}
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
        results = self._apply(registry.call(operator, values, attributes), tensors, name)
        return results[0] if len(results) == 1 else results

    def _call_library(
        self, operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any], names: Sequence[str]
    ) -> Tensor | tuple[Tensor, ...]:
        from einc.frontend.expressions import TensorValue
        from einc.frontend.single_equation import add_library_call

        def convert(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return self._convert(value)
            self._require_own(value)
            return TensorValue(value.name, value.desc)

        self._require_open()
        values = [convert(value) for value in arguments]
        named = {key: convert(value) for key, value in keywords.items()}
        results = add_library_call(operator, values, named, self._builder, [check_name(name) for name in names])
        return self._find(results[0]) if len(results) == 1 else tuple(map(self._find, results))

    def equation(self, text: str, name: str | None = None, **values: Tensor | Number | str) -> Tensor:
        """An index equation of the language: `graph.equation("y[i] = sum[j](a[i, j] * b[j])", a=x, b=v)`.

        `values` are what its names stand for. The result is called as on the left side, unless it has a `name`. Raises
        ModelError, with the place in the text.
        """
        from einc.frontend.single_equation import add_equation

        self._require_open()
        known: dict[str, tuple[str, TensorDesc] | Number | str] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                self._require_own(value)
                known[key] = value.name, value.desc
            else:
                known[key] = value if isinstance(value, str) else read_number(value)
        result = add_equation(text, known, self._builder, None if name is None else check_name(name))
        return self._find(result)

    # Elementwise operators

    def unary(self, x: Tensor, function: str, value: float = 0.0, name: str | None = None) -> Tensor:
        """A scalar function of every element: "relu", "gelu", "silu", "exp", ...

        `value` is the threshold of "relu" (0.0 as usual), and the second operand of "add", "mul", "pow", "max" and the
        like; other functions do not use it.
        """
        (desc,) = self._descs(x)
        takes_two = function in SCALAR_FUNCTIONS and SCALAR_FUNCTIONS[function].arity == 2
        if takes_two or (function == "relu" and value != 0):
            literal = int(value) if not desc.dtype.is_float and float(value).is_integer() else value
            return self._one("max" if function == "relu" else function, (x, literal), {}, name)
        if value != 0:
            raise UsageError(f"unary function '{function}' takes no value, and {value} was given")
        return self._one(function, (x,), {}, name)

    def binary(self, a: Tensor | Number, b: Tensor | Number, function: str, name: str | None = None) -> Tensor:
        """A scalar function of two elements: "add", "sub", "mul", "div", "max", "min", "pow", "lt", ...

        Dimensions are matched from the last one backwards; a tensor with fewer dimensions is repeated over the rest.
        One operand may be a number, which takes the type of the other.
        """
        return self._elementwise(function, (a, b), name)

    def where(self, condition: Tensor, a: Tensor | Number, b: Tensor | Number, name: str | None = None) -> Tensor:
        """`a` where the bool tensor `condition` holds, else `b`; dimensions are matched as in `binary`."""
        return self._elementwise("where", (condition, a, b), name)

    def clip(self, x: Tensor, low: Tensor | Number, high: Tensor | Number, name: str | None = None) -> Tensor:
        """`x`, or `low` where it is less, or `high` where it is more; dimensions are matched as in `binary`."""
        return self.binary(self.binary(x, low, "max"), high, "min", name)

    def cast(self, x: Tensor, dtype: Any, name: str | None = None) -> Tensor:
        """Another element type, by its name or as a numpy type."""
        return self._one("cast", (x, read_dtype(dtype).value), {}, name)

    # Products and aggregations

    def matmul(self, a: Tensor, b: Tensor, name: str | None = None) -> Tensor:
        """The product of two matrices; leading dimensions are batch dimensions."""
        self._descs(a, b)
        return self._one("matmul", (a, b), {}, name)

    def einsum(self, equation: str, *tensors: Tensor, name: str | None = None) -> Tensor:
        """A product of tensors, summed over the indices that are not on the right side: "ij,jk->ik"."""
        descs = self._descs(*tensors)
        try:
            parsed = parse_letters(equation)
        except PlanFault as fault:
            raise UsageError(fault.message, hint='write "ij,jk->ik"') from None
        if len(parsed.inputs) != len(tensors):
            raise UsageError(f"'{equation}' does not say how {len(tensors)} tensors meet", hint='write "ij,jk->ik"')
        program = ProgramBuilder(len(tensors))
        product: Operand = ScalarInput(0)
        for k in range(1, len(tensors)):
            product = program.add("mul", product, ScalarInput(k))
        result = [(label, f"d{d}") for d, label in enumerate(parsed.output)]
        inputs = list(zip(descs, parsed.inputs, strict=True))
        return self._apply(build_equation(inputs, result, program.program(product), "sum"), tensors, name)[0]

    def reduce(self, x: Tensor, aggregation: str, axes: int | Sequence[int], name: str | None = None) -> Tensor:
        """The "sum", "max", "min", "prod" or "mean" over some dimensions, which the result does not have."""
        (desc,) = self._descs(x)
        gone = [resolve_axis(axis, desc) for axis in ([axes] if isinstance(axes, int) else axes)]
        if len(set(gone)) < len(gone):
            raise OperatorError(f"an axis of {desc} is named twice in {axes!r:.80}")
        known = (*AGGREGATIONS, "mean")
        if aggregation not in known:
            hint = did_you_mean(aggregation, known) or f"use one of {', '.join(known)}"
            raise OperatorError(f"there is no aggregation {aggregation!r:.80}", hint=hint)
        if gone and len(set(desc.dims)) == desc.rank:
            return self._one(aggregation, (x, *(desc.dims[d] for d in gone)), {}, name)
        if aggregation == "mean":
            raise OperatorError(f"mean: {desc} has two dimensions of one name", hint="add, and divide by the extents")
        labels = tuple(f"i{d}" for d in range(desc.rank))
        kept = [(label, desc.dims[d]) for d, label in enumerate(labels) if d not in gone]
        operator = build_equation([(desc, labels)], kept, make_step("copy", ScalarInput(0)), aggregation)
        return self._apply(operator, (x,), name)[0]

    def softmax(self, x: Tensor, axis: int = -1, name: str | None = None) -> Tensor:
        """The softmax along one dimension."""
        return self._one("softmax", (x, self._dim(x, axis)), {}, name)

    def argmax(self, x: Tensor, axis: int = -1, name: Sequence[str] | None = None) -> tuple[Tensor, Tensor]:
        """The index (i64) of the largest element along a dimension, and its value."""
        index, value = self._several("argmax", (x, self._dim(x, axis)), {}, name)
        return index, value

    def topk(
        self, x: Tensor, k: int, axis: int = -1, into: str = "k", name: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The values of the k largest elements along a dimension, and their indices (i64), along a new last one."""
        values, indices = self._several("topk", (x, k, self._dim(x, axis)), {"into": into}, name)
        return values, indices

    # Layers of models

    def rmsnorm(self, x: Tensor, gain: Tensor | None = None, name: str | None = None, **options: Any) -> Tensor:
        """Over the last dimension; `eps`, and `offset`, which is added to the gain."""
        return self._one("rmsnorm", (x,) if gain is None else (x, gain), options, name)

    def layernorm(
        self, x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, name: str | None = None, **options: Any
    ) -> Tensor:
        """Over the last dimension; `eps`, and `offset`, which is added to the gain. A bias stands behind a gain."""
        if gain is None and bias is not None:
            raise UsageError("layernorm has a bias and no gain", hint="add the bias to the result")
        return self._one("layernorm", [part for part in (x, gain, bias) if part is not None], options, name)

    def rope(self, x: Tensor, name: str | None = None, **options: Any) -> Tensor:
        """Rotary positions of `[..., tokens, d_head]`; `theta`, `seq_lens` or `positions`, and `scaling`."""
        return self._one("rope", (x,), options, name)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, name: str | None = None, **options: Any) -> Tensor:
        """Attention with grouped queries; its options are those of the language: `causal`, `seq_lens`, `mask`, ...

        `call("attention", ...)` also returns the log-sum-exp.
        """
        return self._several("attention", (q, k, v), options, name)[0]

    def embedding(self, ids: Tensor, table: Tensor, name: str | None = None) -> Tensor:
        """The rows of a table by integer ids."""
        return self._one("embedding", (ids, table), {}, name)

    def expert_matmul(self, x: Tensor, weight: Tensor, picks: Tensor, name: str | None = None) -> Tensor:
        """The product of each token with the matrices of the experts that it picks: a row for each token and slot."""
        return self._one("expert_matmul", (x, weight, picks), {}, name)

    def append(self, cache: Tensor, new: Tensor, positions: Tensor, name: str | None = None, **options: Any) -> Tensor:
        """A cache with some of its rows replaced; `cache_lens` and `new_lens`."""
        return self._one("append", (cache, new, positions), options, name)

    def meanpool(self, x: Tensor, mask: Tensor, name: str | None = None, **options: Any) -> Tensor:
        """The masked mean of every packed sequence; `seq_lens`, `into`."""
        return self._one("meanpool", (x, mask), options, name)

    # Shapes

    def transpose(self, x: Tensor, axes: Sequence[int] | None = None, name: str | None = None) -> Tensor:
        """The dimensions in another order; the last two swapped if none is given."""
        (desc,) = self._descs(x)
        if axes is None:
            return self._one("transpose", (x,), {}, name)
        order = [resolve_axis(axis, desc) for axis in axes]
        if sorted(order) != list(range(desc.rank)):
            raise OperatorError(f"{axes!r:.80} does not list every axis of {desc} once")
        labels = make_unique(desc.dims)
        result = [(labels[d], desc.dims[d]) for d in order]
        return self._apply(
            build_equation([(desc, labels)], result, make_step("copy", ScalarInput(0)), None), (x,), name
        )[0]

    def reshape(self, x: Tensor, shape: Shape, name: str | None = None) -> Tensor:
        """The same elements in row-major order; `shape` is a list of extents, or names with extents."""
        self._descs(x)
        dims, extents = read_shape(shape)
        return self._one("reshape", (x,), dict(zip(dims, extents, strict=True)), name)

    def concat(
        self, tensors: Sequence[Tensor], axis: int = 0, into: str | None = None, name: str | None = None
    ) -> Tensor:
        """One after the other along a dimension; `into` is its name in the result."""
        if not tensors:
            raise UsageError("concat takes at least one tensor")
        options = {"over": self._dim(tensors[0], axis)} | ({} if into is None else {"into": into})
        return self._one("concat", tuple(tensors), options, name)

    def cut(self, x: Tensor, key: Any, name: str | None = None) -> Tensor:
        """What `x[key]` means: integers drop a dimension, slices keep a part of it."""
        (desc,) = self._descs(x)
        bounds, dropped = read_slices(key, desc)
        box = TensorType(tuple(start for start, _ in bounds), tuple(stop for _, stop in bounds))
        if box != desc.type:
            x = self._apply(cut_out(desc, box), (x,), None if dropped else name)[0]
        if not dropped:
            return x
        kept = {dim: stop - start for d, (dim, (start, stop)) in enumerate(zip(desc.dims, bounds, strict=True))
                if d not in dropped}  # fmt: skip
        return self._one("reshape", (x,), kept, name)

    # Helpers

    def _find_name(self, key: str) -> str:
        """The present name of the tensor that was first called `key`."""
        return self._names.get(key, key)

    def _one(self, operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any], name: str | None) -> Tensor:
        return self._several(operator, arguments, keywords, name)[0]

    def _several(
        self, operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any], name: str | Sequence[str] | None
    ) -> tuple[Tensor, ...]:
        outputs = self.call(operator, *arguments, name=name, **keywords)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def _elementwise(self, function: str, operands: Sequence[Tensor | Number], name: str | None) -> Tensor:
        """By the names of dimensions where they say the same as their positions, so that plans have these names."""
        operands = [operand if isinstance(operand, Tensor) else read_number(operand) for operand in operands]
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        if not tensors:
            raise UsageError(f"{function} takes at least one tensor")
        descs = self._descs(*tensors)
        wide = max(descs, key=lambda desc: desc.rank)
        unique = len(set(wide.dims)) == wide.rank
        if all(
            desc.dims == wide.dims or (unique and desc.dims == wide.dims[wide.rank - desc.rank :]) for desc in descs
        ):
            return self._one(function, operands, {}, name)
        labels = [tuple(f"i{d}" for d in range(wide.rank - desc.rank, wide.rank)) for desc in descs]
        inputs = iter(range(len(tensors)))
        program = ProgramBuilder(len(tensors))
        values = [ScalarInput(next(inputs)) if isinstance(value, Tensor) else value for value in operands]
        result = program.program(program.add(function, *values))
        names = next(tensor_labels for desc, tensor_labels in zip(descs, labels, strict=True) if desc is wide)
        dims = list(zip(names, wide.dims, strict=True))
        return self._apply(build_equation(list(zip(descs, labels, strict=True)), dims, result, None), tensors, name)[0]

    def _dim(self, x: Tensor, axis: int) -> str:
        (desc,) = self._descs(x)
        return desc.dims[resolve_axis(axis, desc)]

    def _convert(self, value: Any) -> Argument:
        """An argument as the operators of the library take it."""
        if isinstance(value, Tensor):
            return self._descs(value)[0]
        if isinstance(value, str):
            return value
        if isinstance(value, Iterable) and not hasattr(value, "shape"):
            return tuple(item if isinstance(item, str) else read_number(item) for item in value)
        return read_number(value)

    def _apply(
        self, operator: Operator, tensors: Sequence[Tensor], name: str | Sequence[str] | None
    ) -> tuple[Tensor, ...]:
        self._require_open()
        for desc in operator.outputs:
            check_size(desc)
        names = [] if name is None else [name] if isinstance(name, str) else list(name)
        if len(names) > len(operator.outputs):
            raise UsageError(f"{operator.title} has {len(operator.outputs)} results, and {len(names)} names were given")
        for output_name in names:
            check_name(output_name)
        if names:
            names += [f"{names[0]}.{k}" for k in range(1, len(operator.outputs) - len(names) + 1)]
        output_names = self._builder.apply(operator, [tensor.name for tensor in tensors], names)
        return tuple(map(self._find, output_names))

    def _find(self, name: str) -> Tensor:
        """The tensor that has just been added under this name."""
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
        """Raises UsageError if nothing can be added any more."""
