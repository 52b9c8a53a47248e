"""Signatures of custom operators: `x: float[..., n], w: float[n] -> y[..., n]`.

A tensor is a name, what its elements may be, and a label for each of its dimensions. `...` stands for any number of
dimensions, the same ones wherever it stands. Operands that share a label have the same extent there. A label that only
results have is a setting of the operator, which is their extent. A result without a type has that of the first operand.

All that a plan says of the family `custom`, an operator that a Python package defines, follows from its signature,
which is in the plan. So a plan is proved, predicted and explained without the package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from einc_runtime.errors import PlanFault
from einc_runtime.plan.element_types import DTypeName
from einc_runtime.plan.meaning.terms import (
    WHOLE,
    Application,
    Axes,
    BlockAxis,
    IndexForm,
    OperatorMeaning,
    TensorForm,
    unique_names,
)
from einc_runtime.plan.scalar_functions import NUMBER_TYPES
from einc_runtime.plan.schema import FLOATS, INTEGERS
from einc_runtime.strict_json import parse_json
from einc_runtime.text import escape_text

# Limits of signatures, which plan files contain.
MAX_SIGNATURE_CHARACTERS = 2000
MAX_SIGNATURE_TENSORS = 16
MAX_SIZE_SETTING = 1 << 48
ELLIPSIS: Final = "..."

ELEMENT_KINDS: Mapping[str, tuple[DTypeName, ...]] = {
    "float": FLOATS,
    "integer": INTEGERS,
    "number": (*FLOATS, *INTEGERS),
    "any": (*FLOATS, *INTEGERS, "bool"),
    **{name: (name,) for name in (*FLOATS, *INTEGERS, "bool")},
}
"""What the elements of an operand may be; the element types themselves are those of results, too."""

_TENSOR = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::\s*(\w+)\s*)?\[([^\[\]]*)\]\s*", re.A)
_LABEL = re.compile(r"[A-Za-z_]\w*", re.A)


@dataclass(frozen=True, slots=True)
class CustomTensor:
    """An operand or a result; `kind` is empty for a result that has the type of the first operand."""

    name: str
    kind: str
    labels: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}{f': {self.kind}' if self.kind else ''}[{', '.join(self.labels)}]"


@dataclass(frozen=True, slots=True)
class CustomSignature:
    """What a custom operator takes and returns."""

    operands: tuple[CustomTensor, ...]
    results: tuple[CustomTensor, ...]

    @property
    def size_labels(self) -> tuple[str, ...]:
        """The labels that only results have, in their order."""
        known = {label for tensor in self.operands for label in tensor.labels}
        return tuple(dict.fromkeys(label for t in self.results for label in t.labels if label not in known))

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label but `...`, in the order in which they appear."""
        tensors = (*self.operands, *self.results)
        return tuple(dict.fromkeys(label for t in tensors for label in t.labels if label != ELLIPSIS))

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.operands))} -> {', '.join(map(str, self.results))}"


@dataclass(frozen=True, slots=True)
class BoundSignature:
    """A signature applied to tensors. Dimensions behind `...` have the labels `...0`, `...1` and so on.

    `extents` has every label in the order of the signature, and `names` the name of its dimension in a plan.
    """

    extents: Mapping[str, int]
    names: Mapping[str, str]
    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    result_forms: tuple[TensorForm, ...]

    def list_cuts(self, uncut: Sequence[str], aggregation: str) -> tuple[str, ...]:
        """The labels along which the operator may be cut: those that operands have, which may be cut, and which all
        results have where partial results cannot be aggregated."""
        read = {label for labels in self.operands for label in labels}
        return tuple(
            label
            for label in self.extents
            if label in read
            and not (label in uncut or (label.startswith(ELLIPSIS) and ELLIPSIS in uncut))
            and (aggregation or all(label in labels for labels in self.results))
        )


@lru_cache(maxsize=1024)
def parse_custom_signature(text: str) -> CustomSignature:
    """The signature of a text. Raises PlanFault for all that is not one."""
    _require(len(text) <= MAX_SIGNATURE_CHARACTERS, f"more than {MAX_SIGNATURE_CHARACTERS:,} characters")
    sides = text.split("->")
    _require(len(sides) == 2, "expected operands, `->` and results, such as `x[..., n] -> y[..., n]`")
    operands, results = (_parse_tensors(side) for side in sides)
    tensors = (*operands, *results)
    _require(len(tensors) <= MAX_SIGNATURE_TENSORS, f"more than {MAX_SIGNATURE_TENSORS} tensors")
    _require(len({tensor.name for tensor in tensors}) == len(tensors), "two tensors have one name")
    operands = tuple(CustomTensor(t.name, t.kind or "float", t.labels) for t in operands)
    for tensor in operands:
        _require(tensor.kind in ELEMENT_KINDS, f"'{tensor.kind}' is none of {', '.join(ELEMENT_KINDS)}")
    for tensor in results:
        is_type = ELEMENT_KINDS.get(tensor.kind) == (tensor.kind,)
        _require(not tensor.kind or is_type, f"the result {tensor.name} has no element type '{tensor.kind}'")
    spread = any(ELLIPSIS in tensor.labels for tensor in operands)
    _require(spread or all(ELLIPSIS not in t.labels for t in results), "no operand has the dimensions `...`")
    return CustomSignature(operands, results)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise PlanFault(f"signature of a custom operator: {message}")


def _parse_tensors(text: str) -> tuple[CustomTensor, ...]:
    tensors, at = [], 0
    while True:
        match = _TENSOR.match(text, at)
        _require(match is not None, f"'{escape_text(text[at:].strip(), 60)}' is no tensor such as `x: float[rows, n]`")
        assert match is not None
        labels = tuple(label.strip() for label in match[3].split(",")) if match[3].strip() else ()
        for label in labels:
            known = label == ELLIPSIS or _LABEL.fullmatch(label) is not None
            _require(known, f"'{escape_text(label, 40)}' is no label of a dimension")
        _require(len(set(labels)) == len(labels), f"{match[1]} has a label twice")
        tensors.append(CustomTensor(match[1], match[2] or "", labels))
        at = match.end()
        if at == len(text):
            return tuple(tensors)
        _require(text[at] == ",", f"expected `,` before '{escape_text(text[at:], 40)}'")
        at += 1


def bind_signature(
    signature: CustomSignature, forms: Sequence[TensorForm], sizes: Mapping[str, object]
) -> BoundSignature:
    """The signature for operands of these forms, with these settings. Raises PlanFault where they do not fit."""
    count = len(signature.operands)
    if len(forms) != count:
        raise PlanFault(f"it takes {count} tensor{'s' * (count != 1)}, not {len(forms)}: {signature}")
    extents: dict[str, int] = {}
    names: dict[str, str] = {}
    spread: tuple[str, ...] | None = None
    operands = []
    for tensor, form in zip(signature.operands, forms, strict=True):
        labels = _expand(tensor, form.rank)
        fits = labels is not None and form.dtype in ELEMENT_KINDS[tensor.kind]
        if labels is None or not fits:
            raise PlanFault(f"its operand {tensor} is {form}")
        expanded = tuple(label for label in labels if label.startswith(ELLIPSIS))
        if ELLIPSIS in tensor.labels:
            if spread is not None and expanded != spread:
                raise PlanFault(
                    f"`...` has {len(spread)} dimensions, and {len(expanded)} in its operand {tensor}: {form}"
                )
            spread = expanded
        for label, name, extent in zip(labels, form.dims, form.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise PlanFault(f"'{label}' is {extents[label]}, and {extent} in its operand {tensor}: {form}")
            names.setdefault(label, name)
        operands.append(labels)
    for label in signature.size_labels:
        size = sizes.get(label)
        if type(size) is not int or not 0 < size < MAX_SIZE_SETTING:
            raise PlanFault(f"the setting '{label}' is an extent of its result, a positive integer, not {size!r:.40}")
        extents[label], names[label] = size, label
    results = tuple(
        tuple(name for label in tensor.labels for name in ((spread or ()) if label == ELLIPSIS else (label,)))
        for tensor in signature.results
    )
    unique = dict(zip(extents, unique_names([names[label] for label in extents]), strict=True))
    result_forms = tuple(
        TensorForm(
            unique_names([names[label] for label in labels]),
            tuple(extents[label] for label in labels),
            tensor.kind or forms[0].dtype,  # type: ignore[arg-type]
        )
        for tensor, labels in zip(signature.results, results, strict=True)
    )
    return BoundSignature(extents, unique, tuple(operands), results, result_forms)


def _expand(tensor: CustomTensor, rank: int) -> tuple[str, ...] | None:
    """The labels of an operand of this rank; None where it cannot have that many dimensions."""
    if ELLIPSIS not in tensor.labels:
        return tensor.labels if len(tensor.labels) == rank else None
    count = rank - len(tensor.labels) + 1
    if count < 0:
        return None
    at = tensor.labels.index(ELLIPSIS)
    spread = tuple(f"{ELLIPSIS}{number}" for number in range(count))
    return (*tensor.labels[:at], *spread, *tensor.labels[at + 1 :])


def format_settings(settings: Mapping[str, object]) -> str:
    """Settings as a plan has them: JSON with sorted names."""
    return json.dumps(settings, sort_keys=True, allow_nan=False)


def parse_settings(text: str) -> dict[str, Any]:
    """The settings of `format_settings`: numbers, strings, booleans, and lists of these. Raises PlanFault."""
    try:
        settings = parse_json(text)
    except ValueError as error:
        raise PlanFault(f"settings of a custom operator: {error}") from None
    _require(isinstance(settings, dict), "its settings are no object")
    assert isinstance(settings, dict)
    for value in settings.values():
        items = value if isinstance(value, list) else [value]
        _require(all(isinstance(item, bool | int | float | str) for item in items), "its settings are nested")
    _require(format_settings(settings) == text, "its settings are not in canonical form")
    return settings


AGGREGATIONS = ("sum", "max", "min", "prod")


def bind(applied: Application) -> BoundSignature:
    """The operator's signature for its operands and settings."""
    signature = parse_custom_signature(applied.value("signature", str))
    applied.require(str(signature) == applied.attributes["signature"], "its signature is not in canonical form")
    return bind_signature(signature, applied.inputs, parse_settings(applied.value("settings", str)))


def custom(applied: Application) -> OperatorMeaning:
    """`operator` is its name, `operations` the floating point operations at each index vector of its labels. `uncut`
    are labels along which it is not cut; without an `aggregation`, all that some result lacks are uncut."""
    applied.allow(("operator", "signature", "uncut", "aggregation", "operations", "settings"))
    bound = bind(applied)
    uncut, aggregation = applied.items("uncut", str), applied.value("aggregation", str)
    applied.require(applied.number("operations", above=-1.0) >= 0, "its operations are negative")
    known = aggregation in ("", *AGGREGATIONS)
    numbers = all(form.dtype in NUMBER_TYPES for form in bound.result_forms)
    applied.require(known and (numbers or not aggregation), f"there is no aggregation '{aggregation[:40]}' here")
    cuts = bound.list_cuts(uncut, aggregation)

    def follow(labels: tuple[str, ...]) -> Axes:
        return tuple(BlockAxis(cuts.index(label)) if label in cuts else WHOLE for label in labels)

    return OperatorMeaning(
        "custom",
        {name: applied.value(name, str) for name in ("operator", "signature", "settings")},
        bound.result_forms,
        tuple(IndexForm(bound.names[label], bound.extents[label]) for label in cuts),
        tuple(map(follow, bound.operands)),
        tuple(map(follow, bound.results)),
        (aggregation or "sum",) * len(bound.results),
    )
