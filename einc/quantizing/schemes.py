"""How weights are stored: the schemes that options describe, and what a configuration says of one."""

from __future__ import annotations

import json
from typing import Any

from einc.errors import UsageError
from einc.importers.config import parse_config
from einc.quantizing.rounding import RoundingScheme
from einc_runtime.plan.element_types import STORED_FORMS

COMPRESSED_FORMATS = {
    "i8": "int-quantized", "i4": "pack-quantized", "f8e4m3": "float-quantized", "mxfp8": "mxfp8-quantized",
    "mxfp4": "mxfp4-pack-quantized", "nvfp4": "nvfp4-pack-quantized",
}  # fmt: skip
"""What compressed-tensors calls the layout of each form that is written."""


def choose_scheme(
    form_name: str, group: int | None = None, zeros: bool = False, round_inputs: bool = False
) -> RoundingScheme:
    """The scheme of a form that options describe; without `group`, groups of 32 for i4, and else those of the form.

    Raises UsageError for options that do not go together.
    """
    form = STORED_FORMS[form_name]
    size = (form.group or (32 if form_name == "i4" else 0)) if group is None else group
    if form.group and (zeros or size != form.group):
        raise UsageError(f"{form_name} has groups of {form.group}, and no --zeros")
    if not form.group and size % 32:
        raise UsageError(f"--group is {size}, and groups are multiples of 32")
    if form_name == "f8e4m3" and (zeros or size not in (0, 128)):
        raise UsageError("floats of 8 bits have no --zeros, and scales of rows or, with --group 128, of blocks")
    if round_inputs and (size or zeros or form.packing > 1):
        raise UsageError("--round-inputs is for weights of 8 bits with a scale for each row, without zero points")
    return RoundingScheme(form, size, zeros)


def describe_scheme(scheme: RoundingScheme, skipped: list[str], round_inputs: bool) -> dict[str, Any]:
    """The field `quantization_config` of a configuration: how weights are stored, but for those of `skipped` layers."""
    form = scheme.form
    if scheme.has_blocks:
        return {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [scheme.group, scheme.group], "modules_to_not_convert": skipped,
        }  # fmt: skip
    strategy = "tensor_group" if form.has_factor else "group" if scheme.group else "channel"
    weights = {
        "num_bits": scheme.bits, "type": "float" if form.is_float else "int", "symmetric": not scheme.zeros,
        "dynamic": False, "strategy": strategy, "group_size": scheme.group or None,
    }  # fmt: skip
    if form.group:
        weights["scale_dtype"] = "torch.uint8" if form.scales == "f8e8m0" else "torch.float8_e4m3fn"
    inputs = {"num_bits": 8, "type": weights["type"], "symmetric": True, "dynamic": True, "strategy": "token"}
    activations = {"input_activations": inputs if round_inputs else None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": COMPRESSED_FORMATS[form.name],
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **activations}},
        "ignore": skipped,
        "kv_cache_scheme": None,
    }


def quantize_configuration(config: bytes, where: str, scheme: RoundingScheme, round_inputs: bool) -> bytes:
    """The configuration of the folder that quantizing the linear layers of a published one would write. `where` names
    it in errors. Raises ModelError for what is no configuration, UsageError if its weights are quantized already."""
    fields = parse_config(config, where)
    if fields.get("quantization_config") is not None:
        raise UsageError("its weights are quantized already", where=where)
    described = describe_scheme(scheme, ["lm_head"], round_inputs)
    return json.dumps({**fields, "quantization_config": described}).encode()
