"""The tensors of a GGUF file by the names and in the forms that they have in published folders of transformers.

llama.cpp stores models of these architectures otherwise in a few ways, which are undone here:

- In Llama's, the rows of queries and keys of each head are in another order: neighbours are rotated together there, and
  here the elements i and i + d_head / 2.
- Gains of Gemma's norms are stored plus 1.
- Experts are one tensor; each is a part of it.

Blocks of `Q8_0` and `Q4_0` stay integers with a scale for each 32, `NAME` and `NAME_scale`, as compressed-tensors has
them, where all layers have a tensor of this name in the same type. Other blocks are widened to f32 while they are read.
Embeddings are always widened: rows of them are looked up.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.gguf_blocks import (
    BLOCK_ELEMENTS,
    DENSE_TYPES,
    WIDENING,
    split_q4,
    split_q8,
    widen_blocks,
)
from einc_runtime.execution.data.gguf_file import GgufFile
from einc_runtime.execution.data.stored_arrays import StoredArray, StoredArrays

GROUPED_TYPES = {"Q8_0": "i8", "Q4_0": "i4x2"}
"""Types whose blocks are integers with a scale, which plans have as they are, and einc's type of the integers."""
MAX_STACKED_EXPERTS = 1 << 16
MAX_FACTORS = 1 << 16
"""Of the rotation of heads; there is one for each pair of elements."""

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_EMBEDDING = "token_embd.weight"
_PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = {**_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
    "ffn_up_exps": "block_sparse_moe.experts.*.w3", "ffn_down_exps": "block_sparse_moe.experts.*.w2",
}  # fmt: skip
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.*.gate_proj", "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}  # fmt: skip
CHANGED_NAMES: dict[str, dict[str, str]] = {
    "llama": _MIXTRAL,
    "qwen2": {},
    "qwen3": {},
    "qwen3moe": _QWEN_EXPERTS,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gemma": {},
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "olmo2": _NORMS_AFTER,
}
"""By architecture: the parts of a layer that have other names than most."""
_PERMUTED = ("attn_q", "attn_k")
_PERMUTING = ("llama",)
_NORMS_PLUS_ONE = ("gemma", "gemma2", "gemma3")
_LAYER = re.compile(r"blk\.(\d{1,9})\.([a-z0-9_]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class _StoredPart:
    """What a name of a published folder stands for: a tensor, or an expert of it. `heads` is not 0 where rows of heads
    are in another order; `grouped` says that its blocks stay integers, and `plus_one` that 1 is subtracted."""

    stored: str
    heads: int = 0
    plus_one: bool = False
    expert: int | None = None
    grouped: bool = False


def view_gguf(file: GgufFile) -> StoredArrays:
    """The tensors by the names that transformers gives them. What it has no name for keeps that of the file."""
    parts = _name_parts(file)
    scales = {f"{name}_scale": name for name, part in parts.items() if part.grouped}

    def find(name: str) -> StoredArray:
        if name in scales:
            return _find_scales(file, parts[scales[name]])
        return _find_values(file, parts[name]) if parts[name].grouped else _find_dense(file, parts[name])

    return StoredArrays({*parts, *scales}, find)


def _name_parts(file: GgufFile) -> dict[str, _StoredPart]:
    architecture = str(file.metadata.get("general.architecture"))
    names = _PARTS | CHANGED_NAMES.get(architecture, {})
    heads = {part: _count_heads(file, architecture, part) for part in _PERMUTED}
    grouped = _find_grouped(file)
    parts: dict[str, _StoredPart] = {}
    for stored, tensor in file.tensors.items():
        layer = _LAYER.fullmatch(stored)
        plus_one = architecture in _NORMS_PLUS_ONE and stored.endswith("norm.weight")
        part = _StoredPart(stored, plus_one=plus_one, grouped=stored in grouped)
        if layer is None or layer[2] not in names:
            parts[_OUTER.get(stored, stored)] = part
            continue
        if layer[2] in _PERMUTED and architecture in _PERMUTING:
            part = replace(part, heads=heads[layer[2]])
        name = f"model.layers.{layer[1]}.{names[layer[2]]}.{layer[3]}"
        if "*" not in name:
            parts[name] = part
        elif len(tensor.shape) == 3 and tensor.shape[0] <= MAX_STACKED_EXPERTS:
            parts |= {name.replace("*", str(k)): replace(part, expert=k) for k in range(tensor.shape[0])}
        else:
            parts[stored] = part
    return parts


def _count_heads(file: GgufFile, architecture: str, part: str) -> int:
    """The number of heads of queries or keys; 0 where the file does not say it, and the compiler refuses it."""
    for key in ("attention.head_count_kv",) * (part == "attn_k") + ("attention.head_count",):
        count = file.metadata.get(f"{architecture}.{key}")
        if isinstance(count, int):
            return max(0, count)
    return 0


def _find_grouped(file: GgufFile) -> frozenset[str]:
    """The tensors whose blocks stay integers: all layers' of a name, if all have the same type. Plans have one type of
    quantized weights: the one of more elements."""
    kinds: dict[str, set[str]] = defaultdict(set)
    members: dict[str, list[str]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    for stored, tensor in file.tensors.items():
        if stored != _EMBEDDING and len(tensor.shape) > 1:
            role = re.sub(r"^blk\.\d+\.", "", stored)
            kinds[role].add(tensor.type)
            members[role].append(stored)
    kind_by_role = {
        role: next(iter(types)) for role, types in kinds.items() if len(types) == 1 and types <= {*GROUPED_TYPES}
    }
    for role, kind in kind_by_role.items():
        sizes[kind] += sum(math.prod(file.tensors[stored].shape) for stored in members[role])
    chosen = max(GROUPED_TYPES, key=lambda kind: sizes[kind])
    return frozenset(stored for role, kind in kind_by_role.items() if kind == chosen for stored in members[role])


def _locate(file: GgufFile, part: _StoredPart) -> tuple[tuple[int, ...], int, int]:
    """The shape of what a part stands for, and where its bytes begin in the tensor, and how many there are."""
    tensor = file.tensors[part.stored]
    size = tensor.end - tensor.begin
    if part.expert is None:
        return tensor.shape, 0, size
    each = size // tensor.shape[0]
    return tensor.shape[1:], part.expert * each, each


def _find_values(file: GgufFile, part: _StoredPart) -> StoredArray:
    shape, begin, count = _locate(file, part)
    kind = file.tensors[part.stored].type
    split = split_q8 if kind == "Q8_0" else split_q4
    width = shape[-1] if kind == "Q8_0" else shape[-1] // 2

    def read(_: object) -> Array:
        values, _scales = split(file.read(part.stored, begin, count))
        return _order_rows(values.reshape(*shape[:-1], width), part)

    return StoredArray(GROUPED_TYPES[kind], (*shape[:-1], width), read)


def _find_scales(file: GgufFile, part: _StoredPart) -> StoredArray:
    shape, begin, count = _locate(file, part)
    split = split_q8 if file.tensors[part.stored].type == "Q8_0" else split_q4
    groups = (*shape[:-1], shape[-1] // BLOCK_ELEMENTS)

    def read(_: object) -> Array:
        _values, scales = split(file.read(part.stored, begin, count))
        return _order_rows(scales.astype(np.float32).reshape(groups), part)

    return StoredArray("f32", groups, read)


def _find_dense(file: GgufFile, part: _StoredPart) -> StoredArray:
    """Elements as they are, or blocks as f32. A type that cannot be widened is one that no weight fits."""
    shape, begin, count = _locate(file, part)
    kind = file.tensors[part.stored].type
    if kind not in DENSE_TYPES and kind not in WIDENING:
        return StoredArray(kind, shape, lambda _: _refuse(file, part.stored, kind))

    def read(_: object) -> Array:
        data = file.read(part.stored, begin, count)
        values = _view_elements(data, kind) if kind in DENSE_TYPES else widen_blocks(data, kind)
        ordered = _order_rows(values.reshape(shape), part)
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            return ordered - np.ones((), ordered.dtype) if part.plus_one else ordered

    plain = not part.heads and not part.plus_one and part.expert is None and kind in DENSE_TYPES
    into: Callable[[Array], None] | None = None
    if plain and sys.byteorder == "little":
        into = lambda memory: file.read_into(part.stored, memory)  # noqa: E731
    return StoredArray(DENSE_TYPES.get(kind, "f32"), shape, read, into)


def _refuse(file: GgufFile, stored: str, kind: str) -> Array:
    raise ArrayFault(f"'{stored[:100]}' is of type {kind}, which cannot be read", where=file.path)


def _view_elements(data: Array, kind: str) -> Array:
    if kind == "BF16":
        return data.view("<u2").astype(np.uint16, copy=False).view(storage_dtype("bf16"))
    form = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I32": "<i4", "I64": "<i8"}[kind]
    return data.view(form).astype(np.dtype(form).newbyteorder("="), copy=False)


def _order_rows(rows: Array, part: _StoredPart) -> Array:
    """Rows [heads * d_head, ...] of which each head has pairs (i, i + d_head / 2) as neighbours, in their order."""
    if not part.heads or rows.shape[0] % (2 * part.heads):
        return rows
    pairs = rows.reshape(part.heads, rows.shape[0] // part.heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def read_factors(file: GgufFile, name: str) -> list[float]:
    """The elements of a short tensor of f32. Raises ArrayFault for any other."""
    tensor = file.tensors[name]
    if tensor.type != "F32" or math.prod(tensor.shape) > MAX_FACTORS:
        raise ArrayFault(
            f"'{name}' should be at most {MAX_FACTORS:,} numbers of f32, found {tensor.type}{list(tensor.shape)}",
            where=file.path,
        )
    factors: list[float] = _view_elements(file.read(name), "F32").tolist()
    return factors
