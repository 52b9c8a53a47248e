"""Quantized weights of published models: what the configuration says, and the names of their parts in files.

Known are GPTQ, AWQ, of compressed-tensors the formats pack-quantized, int-quantized, float-quantized and those of
MXFP8, MXFP4 and NVFP4, and fp8 with scales of blocks. The names in the files say which weights are quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from einc.importers.config import ConfigFields
from einc.importers.writing import StoredNames, StoredWeight
from einc_runtime.plan.element_types import ELEMENT_FORMATS, STORED_FORMS, StoredForm
from einc_runtime.plan.schema import NARROW_BLOCK
from einc_runtime.strict_json import describe_json

MAX_GROUP_SIZE = 2**20
_FLOAT_FORMAT = "float-quantized"
_GROUPED_FORMATS = {
    "mxfp8-quantized": "mxfp8", "mxfp4-pack-quantized": "mxfp4", "nvfp4-pack-quantized": "nvfp4",
}  # fmt: skip
_INTEGERS = {8: STORED_FORMS["i8"], 4: STORED_FORMS["i4"]}
_KEPT_FLOATS = "weights stay floats of 8 or 4 bits, and what is multiplied with them is not rounded"
_WIDENED_FLOATS = "floats of 8 bits are widened when they are read: blocks of 128 columns are no parts of all rows"
WEIGHT = ".weight"
_HARMLESS_QUANTIZATION = (
    "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent", "dataset", "do_fuse",
    "exllama_config", "fuse_max_seq_len", "global_compression_ratio", "hub_config", "lm_head",
    "meta", "model_file_base_name", "model_name_or_path", "model_seqlen", "modules_in_block_to_quantize",
    "modules_to_fuse", "modules_to_not_convert", "module_name_preceding_first_block", "pad_token_id",
    "quantization_status", "static_groups", "sym", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
    "max_input_length", "ignore", "version", "act_group_aware", "format",
    "run_compressed",
)  # fmt: skip
"""Fields that say how weights were quantized, or which: their values and names are in the files."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the quantized weights of a model are stored, in which layout of files; `group` is 0 where each row has one
    scale. `rounds_inputs` says that what is multiplied with them is rounded, token by token; `one_scale` says that a
    tensor has one."""

    form: StoredForm
    layout: str = "plain"
    group: int = 0
    zeros: bool = False
    rounds_inputs: bool = False
    one_scale: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """What the names of a weight's parts in files end with, in place of `.weight`."""
        if self.layout == "blocks":
            return (".weight_scale_inv",)
        if self.layout == "packed":
            return ("_blocks", "_scales")
        if self.layout != "plain":
            return (".qweight", ".scales", ".qzeros")
        more = [".weight_zero_point"] * self.zeros + [".weight_global_scale"] * self.form.has_factor
        return (".weight_scale", *more)

    def format_storage(self, channels: int = 0, *, is_stack: bool = False) -> str:
        """What stands behind `as`; `channels` is for weights without groups whose rows have several dimensions. Of
        stacked tensors, each has its scale where a tensor has one, or its factor; products with them round nothing."""
        options = [f"channels={channels}"] * (channels > 0 and not self.group)
        options = [f"group={self.group}"] if self.group and not self.form.group else options
        options = ["channels=1" if is_stack else "channels=0"] if self.one_scale else options
        options += ["channels=1"] * (is_stack and self.form.has_factor)
        options += [f"inputs={self.form.input_bits}"] * (self.rounds_inputs and not is_stack)
        options += ["zeros=true"] * self.zeros + [f'layout="{self.layout}"'] * (self.layout != "plain")
        return self.form.name + (f"({', '.join(options)})" if options else "")

    def splits_heads(self, d_head: int) -> bool:
        """Whether a group along all heads is no part of one head."""
        return self.group > 0 and d_head % self.group > 0


def read_quantization(fields: ConfigFields, columns: Sequence[int]) -> Quantization | None:
    """How weights, whose rows have these lengths, are stored; None where none is quantized. Problems are noted."""
    inner = fields.nested("quantization_config")
    if inner is None:
        return None
    method = inner.text("quant_method")
    readers: dict[str, Callable[[ConfigFields], Quantization | None]] = {
        "gptq": _read_gptq, "awq": _read_awq, "compressed-tensors": _read_compressed,
        "fp8": lambda inner: _read_blocks(inner, columns),
    }  # fmt: skip
    if method not in readers:
        if method:
            inner.fail(f"quant_method: {describe_json(method)} is not supported", f"supported are {', '.join(readers)}")
        return None
    quantization = readers[method](inner)
    if quantization is not None and quantization.form.is_float and not quantization.rounds_inputs:
        inner.note(_KEPT_FLOATS)
    inner.check_unknown(_HARMLESS_QUANTIZATION, method)
    return quantization


def read_exported(fields: ConfigFields) -> Quantization | None:
    """How weights of a model that transformers builds are stored, where its files have quantized ones: what is
    multiplied with them is not rounded. None where none is, or all are widened. Problems are noted."""
    inner = fields.nested("quantization_config")
    if inner is None:
        return None
    method = inner.text("quant_method")
    if method not in ("fp8", "mxfp4", "compressed-tensors"):
        hint = "supported are fp8, mxfp4, and compressed-tensors"
        inner.fail(f"quantized weights of {describe_json(method)} are not supported for this family", hint)
        return None
    quantization: Quantization | None = Quantization(STORED_FORMS["mxfp4"], "packed", STORED_FORMS["mxfp4"].group)
    if method == "fp8":
        quantization = _read_blocks(inner, ())
    elif method == "compressed-tensors":
        quantization = _read_compressed(inner)
    inner.check_unknown(_HARMLESS_QUANTIZATION, method)
    if quantization is None:
        return None
    if quantization.form.has_factor:
        hint = "tensors of it, which have factors, cannot be joined"
        inner.fail(f"format: {quantization.form.name} is not supported for this family", hint)
    fields.note("weights stay as they are stored, and what is multiplied with them is not rounded")
    return replace(quantization, rounds_inputs=False)


def _read_group(fields: ConfigFields, name: str = "group_size") -> int:
    """The size of groups, 0 where a row is one."""
    if fields.value(name) in (-1, None):
        return 0
    group = fields.integer(name, MAX_GROUP_SIZE)
    if group % 32:
        fields.fail(f"{name}: {group} is not supported: groups are multiples of 32")
    return group


def _read_bits(fields: ConfigFields, name: str, known: Collection[int]) -> int:
    bits = fields.integer(name, 64)
    if bits not in known:
        fields.fail(f"{name}: {bits} is not supported", f"supported are {', '.join(map(str, known))}")
    return bits


def _read_gptq(fields: ConfigFields) -> Quantization:
    name = "checkpoint_format" if fields.value("checkpoint_format") is not None else "format"
    layout = fields.choice(name, {"gptq": "gptq", "gptq_v2": "gptq_v2"}, "gptq")
    fields.require("is_marlin_format", (False,), "values are in rows of words")
    fields.require("pack_dtype", ("int32",), "words have 32 bits")
    bits, group = _read_bits(fields, "bits", (4, 8)), _read_group(fields)
    if fields.flag("desc_act", False) and group:
        fields.require("desc_act", (False,), "groups that are ordered by activations are no neighbours")
    return _require_groups(fields, Quantization(_INTEGERS.get(bits, _INTEGERS[8]), layout, group, zeros=True))


def _read_awq(fields: ConfigFields) -> Quantization:
    fields.require("version", ("gemm", "GEMM"), "other versions have other orders")
    fields.require("zero_point", (True,), "it has zero points")
    name = "bits" if fields.value("bits") is not None else "w_bit"
    group = _read_group(fields, "group_size" if fields.value("group_size") is not None else "q_group_size")
    return _require_groups(
        fields, Quantization(_INTEGERS.get(_read_bits(fields, name, (4,)), _INTEGERS[4]), "awq", group, zeros=True)
    )


def _require_groups(fields: ConfigFields, quantization: Quantization) -> Quantization:
    """GPTQ and AWQ store scales as rows of groups, also if there is one group."""
    if not quantization.group:
        fields.fail("group_size: one group for a whole row is not supported in this layout")
    return quantization


def _read_blocks(fields: ConfigFields, columns: Sequence[int]) -> Quantization | None:
    """Floats of 8 bits with a scale for each block, DeepSeek's layout. The reader of weights widens them where blocks
    do not divide all rows, whose lengths are `columns`."""
    fields.require("fmt", ("e4m3",), "floats have 4 bits of an exponent")
    fields.require("activation_scheme", ("dynamic",), "scales of activations are not stored")
    fields.require("weight_block_size", ([128, 128],), "a block has 128 rows and 128 columns")
    fields.value("scale_fmt", "dequantize")  # the type of scales says it, and weights are widened in any case
    if any(extent % NARROW_BLOCK for extent in columns):
        fields.note(_WIDENED_FLOATS)
        return None
    return Quantization(STORED_FORMS["f8e4m3"], "blocks", NARROW_BLOCK)


def _read_floats(fields: ConfigFields, weights: ConfigFields, inputs: ConfigFields | None) -> Quantization | None:
    """Floats of 8 bits with a scale for each row, each block, or the whole tensor. Those with blocks are widened: their
    scales have the names of rows'."""
    weights.require("num_bits", (8,), "floats have 8 bits")
    weights.require("type", ("float",), "weights are floats")
    weights.require("symmetric", (True,), "there are no zero points")
    strategy = weights.choice("strategy", {"channel": "channel", "tensor": "tensor", "block": "block"})
    weights.require("block_structure", ([128, 128],), "a block has 128 rows and 128 columns")
    if strategy == "block":
        fields.note(_WIDENED_FLOATS)
        return None
    # stored scales of activations are left out, as they are where nothing is rounded
    rounds_inputs = inputs is not None and inputs.flag("dynamic", False) and inputs.value("strategy") == "token"
    if rounds_inputs:
        _read_inputs(inputs, "float")
    return Quantization(STORED_FORMS["f8e4m3"], rounds_inputs=rounds_inputs, one_scale=strategy == "tensor")


def _read_grouped_floats(weights: ConfigFields, form: StoredForm) -> Quantization:
    """Floats of 8 or 4 bits whose groups have scales of 8 bits."""
    weights.require("num_bits", (8 // ELEMENT_FORMATS[form.values].packing,), f"{form.name} has values of so many bits")
    weights.require("type", ("float",), "weights are floats")
    weights.require("symmetric", (True,), "there are no zero points")
    weights.require("strategy", ("tensor_group" if form.has_factor else "group",), "groups have scales")
    weights.require("group_size", (form.group,), f"groups of {form.name} have {form.group} elements")
    return Quantization(form, group=form.group)


def _read_compressed(fields: ConfigFields) -> Quantization | None:
    known = ("pack-quantized", "int-quantized", _FLOAT_FORMAT, *_GROUPED_FORMATS)
    fields.require("format", known, "values of other formats are not integers in rows, or floats of 8 or 4 bits")
    fields.require("kv_cache_scheme", (), "caches are not quantized")
    fields.require("transform_config", ({},), "what is multiplied with weights is not rotated")
    sparsity = fields.nested("sparsity_config")
    if sparsity is not None:  # of dense weights, it says how many elements are 0
        sparsity.require("format", ("dense",), "all elements are stored")
    schemes = fields.nested("config_groups")
    names = sorted(schemes.names()) if schemes is not None else []
    if schemes is None or len(names) != 1:
        fields.fail(f"config_groups: expected one group of weights, found {len(names)}")
        return None
    scheme = schemes.nested(names[0])
    weights = scheme.nested("weights") if scheme is not None else None
    if scheme is None or weights is None:
        fields.fail("config_groups: the group has no weights")
        return None
    stored = fields.value("format")
    if stored == _FLOAT_FORMAT:
        return _read_floats(fields, weights, scheme.nested("input_activations"))
    if isinstance(stored, str) and stored in _GROUPED_FORMATS:
        return _read_grouped_floats(weights, STORED_FORMS[_GROUPED_FORMATS[stored]])
    rounds_inputs = _read_inputs(scheme.nested("input_activations"))
    scheme.require("output_activations", (), "activations are not quantized")
    scheme.require("targets", (["Linear"],), "linear layers are quantized")
    scheme.check_unknown(("format",), "scheme")
    bits = _read_bits(weights, "num_bits", (4, 8))
    weights.require("type", ("int",), "weights are integers")
    weights.require("dynamic", (False,), "scales are stored")
    weights.require("actorder", ("static", "weight"), "groups are neighbours")
    strategy = weights.choice("strategy", {"group": "group", "channel": "channel"})
    group = _read_group(weights) if strategy == "group" else 0
    zeros = not weights.flag("symmetric", True)
    weights.check_unknown(
        ("observer", "observer_kwargs", "block_structure", "scale_dtype", "zp_dtype", "group_size"), "scheme"
    )
    if rounds_inputs and (bits, group, zeros) != (8, 0, False):
        scheme.fail("input_activations: they are rounded for weights of 8 bits with a scale for each row alone")
    return Quantization(_INTEGERS.get(bits, _INTEGERS[8]), "plain", group, zeros, rounds_inputs)


def _read_inputs(fields: ConfigFields | None, kind: str = "int") -> bool:
    """Whether activations are rounded; problems are noted where they are not rounded token by token, to 8 bits of the
    `kind` of the weights, by scales that the tokens themselves give."""
    if fields is None:
        return False
    fields.integer("num_bits", 64)
    fields.require("num_bits", (8,), "activations are rounded to 8 bits")
    fields.require("type", (kind,), f"activations are rounded to {'integers' if kind == 'int' else 'floats'}")
    fields.require("symmetric", (True,), "activations have no zero points")
    if not fields.flag("dynamic", False):
        fields.fail("dynamic: false is not supported: scales of activations are those of each token, and not stored")
    fields.choice("strategy", {"token": "token"})
    fields.check_unknown(("observer", "observer_kwargs", "scale_dtype", "zp_dtype"), "scheme")
    return True


def quantize_weights(
    quantization: Quantization | None, table: Sequence[StoredWeight], stored: StoredNames
) -> list[StoredWeight]:
    """The table with those weights as they are stored that the files have quantized."""
    if quantization is None:
        return list(table)
    part = quantization.parts[0]
    return [_quantize(weight, quantization) if stored.has_quantized(weight, part) else weight for weight in table]


def _quantize(weight: StoredWeight, quantization: Quantization) -> StoredWeight:
    base, _, rows = weight.stored.partition(WEIGHT)
    plain = quantization.layout in ("plain", "blocks")
    heads = weight.dims.startswith("d_model, heads")
    return replace(
        weight,
        stored=f"{base}{WEIGHT if plain else ''}{rows}",
        storage=quantization.format_storage(1 if heads else 0, is_stack=weight.count > 1),
        parts=tuple(part.removeprefix(WEIGHT) if plain else part for part in quantization.parts),
    )
