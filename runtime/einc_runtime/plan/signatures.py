"""The kernels that operations can name, and what each takes: operands of which types and ranks, and which attributes.

This is checked when a plan is loaded. That the sizes of operands fit each other and the attributes is checked when an
invocation is prepared (`einc_runtime.kernels.calls`), and follows from the operation by the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from einc_runtime.errors import PlanFault
from einc_runtime.plan.checks import require
from einc_runtime.plan.reproducible import ATTRIBUTE
from einc_runtime.plan.scalar_functions import COMPUTED_ELEMENT_TYPES, NUMBER_TYPES, STORED_ELEMENT_TYPES
from einc_runtime.plan.schema import FLOATS, INTEGERS, NARROW_FLOATS, QUANTIZED, Operation, Tensor
from einc_runtime.text import escape_text

BOOL_TYPES = ("bool",)


Order = Literal["nothing", "stated", "any"]
"""What a kernel adds up: nothing that is rounded, as it moves elements, chooses among them, computes each by itself, or
adds integers; or sums in an order that reproducible plans state, for which it has a second form; or sums in any order,
so that no reproducible plan has it."""


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """The element types that an operand may have, and how many dimensions; None means any number."""

    dtypes: Sequence[str]
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """What a kernel takes. `more` inputs may follow `inputs`; None means any number, each like the last of these. So
    may `more_outputs`.

    `required` and `optional` are attributes with their types. Every kernel may have the one of reproducible plans.
    `order` says in which order it adds up what it adds.
    """

    inputs: tuple[KernelOperand, ...]
    outputs: tuple[KernelOperand, ...]
    required: dict[str, type]
    optional: dict[str, type] = field(default_factory=dict)
    more: tuple[KernelOperand, ...] | None = ()
    more_outputs: bool = False
    order: Order = field(kw_only=True)


_ELEMENTS = KernelOperand(COMPUTED_ELEMENT_TYPES)
_STORED_ELEMENTS = KernelOperand(STORED_ELEMENT_TYPES)
_REALS = KernelOperand(NUMBER_TYPES)
_ROWS = KernelOperand(FLOATS)
_VECTOR = KernelOperand(FLOATS, 1)
_CUBE = KernelOperand(FLOATS, 3)
_KEYS = KernelOperand((*FLOATS, *NARROW_FLOATS), 3)
_PLACES = KernelOperand(INTEGERS, 1)
_INDICES = KernelOperand(("i64",))
_SCALES = (KernelOperand(QUANTIZED), KernelOperand((*FLOATS, "f8e4m3", "f8e8m0")))
_INT8_OPERAND = KernelOperand(("i8",))
_BESIDE_SCALES = KernelOperand(("i8", "f32"))
"""Zero points, or the factor of a tensor."""
ROPE_SCALINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_length"),
    "longrope": ("factors",),
}
"""How frequencies of `rope` may be scaled, and the attributes of each way: numbers, but for the list `factors`."""

SIGNATURES: dict[str, KernelSignature] = {
    "map": KernelSignature(
        (_STORED_ELEMENTS,),
        (_STORED_ELEMENTS,),
        {"program": str, "indices": str},
        {"in_place": bool},
        more=None,
        order="nothing",
    ),
    "reduce": KernelSignature(
        (_ELEMENTS,),
        (_REALS,),
        {"program": str, "indices": str, "aggregation": str},
        more=None,
        order="stated",
    ),
    "index": KernelSignature(
        (),
        (_STORED_ELEMENTS,),
        {"loops": str, "kept": int, "reads": str, "program": str, "aggregation": str, "shapes": str},
        more=None,
        more_outputs=True,
        order="stated",
    ),
    "contract": KernelSignature((_REALS,), (_REALS,), {"equation": str}, {"scale": float}, more=None, order="stated"),
    "custom": KernelSignature(
        (_ELEMENTS,),
        (_ELEMENTS,),
        {"operator": str, "signature": str, "settings": str},
        more=None,
        more_outputs=True,
        order="any",
    ),
    "dequantize": KernelSignature(_SCALES, (_ROWS,), {"group": int}, more=(_BESIDE_SCALES,), order="nothing"),
    "quantized_contract": KernelSignature(
        (_ROWS, *_SCALES),
        (_ROWS,),
        {"equation": str, "group": int},
        {"scale": float},
        more=(_BESIDE_SCALES,),
        order="stated",
    ),
    "rounded_contract": KernelSignature(
        (_ROWS, _ROWS, _INT8_OPERAND, _ROWS), (_ROWS,), {"equation": str}, {"scale": float}, order="nothing"
    ),
    "recurrence": KernelSignature(
        (_ELEMENTS,),
        (_ELEMENTS,),
        {"loops": str, "equations": list, "reads": list, "programs": list, "aggregations": list, "results": list},
        more=None,
        more_outputs=True,
        order="stated",
    ),
    "reshape": KernelSignature((_STORED_ELEMENTS,), (_STORED_ELEMENTS,), {}, order="nothing"),
    "softmax": KernelSignature((_ROWS,), (_ROWS,), {"axis": int}, order="stated"),
    "rmsnorm": KernelSignature((_ROWS, _VECTOR), (_ROWS,), {"eps": float}, {"offset": float}, order="stated"),
    "layernorm": KernelSignature(
        (_ROWS, _VECTOR, _VECTOR), (_ROWS,), {"eps": float}, {"offset": float}, order="stated"
    ),
    "rope": KernelSignature(
        (_ROWS,),
        (_ROWS,),
        {"theta": float, "scaling": str},
        {"seq_lens": list, "factors": list, **dict.fromkeys(ROPE_SCALINGS["llama3"], float)},
        more=(_PLACES,),
        order="nothing",
    ),
    "expert_matmul": KernelSignature(
        (_ROWS, _CUBE, KernelOperand(INTEGERS, 2)), (_CUBE,), {"experts": int}, order="stated"
    ),
    "append": KernelSignature(
        (KernelOperand(STORED_ELEMENT_TYPES, 3), KernelOperand(STORED_ELEMENT_TYPES, 3), _PLACES),
        (KernelOperand(STORED_ELEMENT_TYPES, 3),),
        {"cache_lens": list, "new_lens": list},
        {"in_place": bool},
        order="nothing",
    ),
    "topk": KernelSignature((_REALS,), (_REALS, _INDICES), {"axis": int}, order="nothing"),
    "attention": KernelSignature(
        (_CUBE, _KEYS, _KEYS),
        (_CUBE, KernelOperand(("f32", "f64"), 2)),
        {"causal": bool, "scale": float, "q_lens": list, "k_lens": list, "window": int, "extras": list},
        {"softcap": float},
        more=(KernelOperand(BOOL_TYPES + INTEGERS, 1),) * 2,
        order="stated",
    ),
}


COMPOSED_KERNELS = frozenset({"index"})
"""Kernels that move elements and leave what is computed to another kernel, of which each runtime has a form."""


def require_signature(operation: Operation, tensors: Sequence[Tensor], where: str) -> None:
    """Raises PlanFault unless there is the kernel of an operation, and it takes these operands and attributes."""
    name = operation.kernel
    if name not in SIGNATURES:
        hint = f"there are {', '.join(SIGNATURES)}"
        raise PlanFault(f"unknown kernel '{escape_text(name, 40)}'", where=f"{where}.kernel", hint=hint)
    signature = SIGNATURES[name]
    count, least = len(operation.inputs), len(signature.inputs)
    last = signature.inputs[-1:] or (_STORED_ELEMENTS,)
    more = last * (count - least) if signature.more is None else signature.more
    fits = least <= count <= least + len(more)
    require(fits, f"{where}.inputs", f"{count} inputs, where the kernel {name} takes {least} to {least + len(more)}")
    outputs = len(signature.outputs)
    message = f"{len(operation.outputs)} outputs, where the kernel {name} has {outputs}"
    repeated = signature.outputs[-1:] * (len(operation.outputs) - outputs) * signature.more_outputs
    require(len(operation.outputs) == outputs + len(repeated), f"{where}.outputs", message)
    for side, positions, operands in (
        ("inputs", operation.inputs, signature.inputs + more),
        ("outputs", operation.outputs, signature.outputs + repeated),
    ):
        for k, (position, operand) in enumerate(zip(positions, operands, strict=False)):
            tensor = tensors[position]
            fits = tensor.dtype in operand.dtypes and operand.rank in (None, len(tensor.shape))
            message = f"the kernel {name} takes no tensor of {tensor.dtype} and {len(tensor.shape)} dimensions here"
            require(fits, f"{where}.{side}[{k}]", message)
    _require_attribute_types(operation, signature, f"{where}.kernel_attributes")
    if ATTRIBUTE in operation.kernel_attributes:
        require_order(name, f"{where}.kernel")


def require_order(name: str, where: str | None = None) -> Order:
    """In which order the kernel `name` adds up in a reproducible plan. Raises PlanFault if none is stated."""
    if name not in SIGNATURES or SIGNATURES[name].order == "any":
        hint = "leave out --reproducible, or give the kernel a form with an order (docs/reproducible.md)"
        raise PlanFault(f"the kernel {escape_text(name, 40)} adds up in no stated order", where=where, hint=hint)
    return SIGNATURES[name].order


def _require_attribute_types(operation: Operation, signature: KernelSignature, where: str) -> None:
    """A bool is no integer, and an integer no float."""
    taken = signature.required | signature.optional
    known = taken | {ATTRIBUTE: bool}
    for attribute, value in operation.kernel_attributes.items():
        at = f"{where}['{attribute}']"
        require(attribute in known, at, f"the kernel {operation.kernel} takes {', '.join(taken) or 'no attributes'}")
        kind = known[attribute]
        require(type(value) is kind, at, f"{type(value).__name__}, where the kernel takes {kind.__name__}")
    missing = [attribute for attribute in signature.required if attribute not in operation.kernel_attributes]
    require(not missing, where, f"the kernel {operation.kernel} needs {', '.join(missing)}")
