"""`einc import hf` of quantized models: what stands behind `as`, and which forms are refused."""

from __future__ import annotations

from typing import Any

import pytest

from einc.frontend import build
from einc.graph.fuse import fuse
from tests.support.import_configs import LLAMA, MIXTRAL, PHI3, faults, imported

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "damp_percent": 0.1}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "strategy": "channel", "group_size": None}
PLAIN = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None}},
}  # fmt: skip
WIDE = {"hidden_size": 192, "intermediate_size": 128, "head_dim": 32}


def weights(**changes: Any) -> dict[str, Any]:
    return {**PLAIN, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, **changes}}}}


def rounded(weights: dict[str, Any] = WEIGHTS, **changes: Any) -> dict[str, Any]:
    """Activations as published W8A8 models have them, and changes of that."""
    inputs = {
        "num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token", "group_size": None,
        "block_structure": None, "actorder": None, "observer": None, "observer_kwargs": {}, **changes,
    }  # fmt: skip
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {**PLAIN, "config_groups": {"group_0": scheme}}


def lines(config: dict[str, Any], quantization: dict[str, Any]) -> dict[str, str]:
    """The declarations of weights by their names; the text is valid."""
    text = imported(config | WIDE | {"quantization_config": quantization}).text
    build(text, "m.ein")
    found = (line.split(" : ") for line in text.splitlines() if line.strip().startswith("weight "))
    return {" ".join(name.split()[1:]): " ".join(rest.split()) for name, rest in found}


def test_each_layout_says_how_weights_are_stored() -> None:
    found = lines(LLAMA, GPTQ)
    assert found["w_up"] == (
        'f16[d_ff, d_model] as i4(group=32, zeros=true, layout="gptq") from "model.layers.{i}.mlp.up_proj"'
    )
    assert found["head"] == 'f16[vocab, d_model] from "lm_head.weight"'
    assert 'layout="gptq_v2"' in lines(LLAMA, {**GPTQ, "checkpoint_format": "gptq_v2"})["w_q"]
    assert 'as i4(group=64, zeros=true, layout="awq") from' in lines(LLAMA, AWQ)["w_q"]
    found = lines(LLAMA, PLAIN)
    assert found["w_q"].startswith("f16[heads_q, d_head, d_model] as i8 from")
    assert found["w_o"].startswith("f16[d_model, heads_q, d_head] as i8(channels=1) from")
    assert (
        "as i4(group=32, zeros=true) from"
        in lines(LLAMA, weights(num_bits=4, strategy="group", group_size=32, symmetric=False))["w_down"]
    )


def test_activations_are_rounded_where_the_configuration_says_so() -> None:
    found = lines(LLAMA, rounded())
    assert found["w_q"].startswith("f16[heads_q, d_head, d_model] as i8(inputs=8) from")
    assert found["w_o"].startswith("f16[d_model, heads_q, d_head] as i8(channels=1, inputs=8) from")
    assert found["head"] == 'f16[vocab, d_model] from "lm_head.weight"'
    model = imported(LLAMA | WIDE | {"quantization_config": rounded()}).text
    titles = [node.operator.title for node in fuse(build(model, "m.ein")).nodes]
    assert titles.count("rounded_product") == 7 * titles.count("attention")
    assert titles.count("max(abs)") == 4 * titles.count("attention")


def test_groups_that_do_not_fit_into_heads_make_them_one_dimension() -> None:
    assert lines(LLAMA, AWQ)["w_o"].startswith("f16[d_model, d_attn] as i4(group=64")
    assert lines(LLAMA, GPTQ)["w_o"].startswith("f16[d_model, heads_q, d_head] as i4(group=32")


def test_rows_of_fused_projections_are_taken_of_each_part() -> None:
    found = lines(PHI3 | {"max_position_embeddings": 64}, GPTQ)
    assert found["w_k"].endswith('from "model.layers.{i}.self_attn.qkv_proj[192:256]"')


def test_the_files_say_which_weights_are_quantized() -> None:
    config = MIXTRAL | WIDE | {"quantization_config": weights()}
    plain = imported(MIXTRAL | WIDE).text
    names = {tensor.stored for tensor in build(plain, "m.ein").tensors if tensor.stored}
    names |= {name.replace("*", str(k)) for name in names for k in range(int(MIXTRAL["num_local_experts"]))}
    experts = {f"{name}_scale" for name in names if ".experts." in name and "*" not in name}
    text = imported(config, stored=frozenset(names | experts)).text
    assert text.count(" as i8 from") == 3
    missing = frozenset((names | experts) - {max(experts)})
    assert any("have no" in fault and "_scale" in fault for fault in faults(config, stored=missing))


BAD = {
    "method": ({"quant_method": "bitsandbytes"}, "quant_method"),
    "bits": ({**GPTQ, "bits": 3}, "bits: 3 is not supported"),
    "order": ({**GPTQ, "desc_act": True}, "ordered by activations"),
    "group": ({**GPTQ, "group_size": 20}, "groups are multiples of 32"),
    "whole rows": ({**GPTQ, "group_size": -1}, "one group for a whole row"),
    "checkpoint": ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format"),
    "marlin": ({**GPTQ, "is_marlin_format": True}, "is_marlin_format"),
    "words of 64 bits": ({**GPTQ, "pack_dtype": "int64"}, "words have 32 bits"),
    "version": ({**AWQ, "version": "gemv"}, "other versions have other orders"),
    "unknown": ({**AWQ, "quant_method": "gptq", "act_order": 3, "hyb_act": 1, "format": "marlin"}, "format: "),
    "format": ({**PLAIN, "format": "marlin-24"}, "format"),
    "groups of floats": ({**PLAIN, "format": "nvfp4-pack-quantized"}, "num_bits"),
    "floats of 8 bits": ({**PLAIN, "format": "float-quantized"}, 'type: "int" is not supported'),
    "other blocks": ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size: a list"),
    "outputs": (
        {**PLAIN, "config_groups": {"group_0": {"weights": WEIGHTS, "output_activations": {"num_bits": 8}}}},
        "activations are not quantized",
    ),
    "stored scales": (rounded(dynamic=False), "dynamic: false is not supported"),
    "tensors": (rounded(strategy="tensor"), "strategy"),
    "bits of inputs": (rounded(num_bits=4), "activations are rounded to 8 bits"),
    "float inputs": (rounded(type="float"), "activations are rounded to integers"),
    "asymmetric inputs": (rounded(symmetric=False), "activations have no zero points"),
    "unknown of inputs": (rounded(format="x"), "format: unknown field"),
    "inputs of groups": (
        rounded(weights={**WEIGHTS, "strategy": "group", "group_size": 32}),
        "rounded for weights of 8 bits with a scale for each row",
    ),
    "floats": (weights(type="float"), "weights are integers"),
    "two groups": ({**PLAIN, "config_groups": {"a": {}, "b": {}}}, "expected one group of weights, found 2"),
    "no weights": ({**PLAIN, "config_groups": {"a": {"weights": None}}}, "the group has no weights"),
    "dynamic": (weights(dynamic=True), "scales are stored"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_forms_are_refused(name: str) -> None:
    quantization, message = BAD[name]
    assert any(message in fault for fault in faults(LLAMA | {"quantization_config": quantization}))


def test_floats_of_8_bits_stay_as_they_are_stored() -> None:
    blocks = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "channel"}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8, "type": "float"}}
    rows = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": scheme}}
    whole = {**rows, "config_groups": {"group_0": {**scheme, "weights": {**weights, "strategy": "tensor"}}}}
    large = LLAMA | {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "num_attention_heads": 4}
    for quantization, storage in (
        (blocks, 'as f8e4m3(group=128, layout="blocks")'),
        (rows, "as f8e4m3 "),
        (whole, "as f8e4m3(channels=0)"),
    ):
        found = imported(large | {"quantization_config": quantization})
        assert found.text.count(storage) >= 6
        assert any("weights stay floats of 8 or 4 bits" in note for note in found.notes)
    tokens = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}
    rounds = {**rows, "config_groups": {"group_0": {**scheme, "input_activations": tokens}}}
    assert imported(large | {"quantization_config": rounds}).text.count("as f8e4m3(inputs=8)") >= 6
    heads = imported(large | {"quantization_config": rows}).text
    assert "d_model, heads_q, d_head] as f8e4m3(channels=1)" in heads


def test_picked_experts_stay_as_they_are_stored() -> None:
    """Each expert has its scale where a tensor has one, or its factor; products with them round nothing."""
    tokens = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}
    groups = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
    floats = {"num_bits": 8, "type": "float", "strategy": "channel"}
    for quantization, storage in (
        (AWQ, 'i4(group=64, zeros=true, layout="awq")'),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 'f8e4m3(group=128, layout="blocks")'),
        ({**weights(**floats), "format": "float-quantized"}, "f8e4m3"),
        ({**rounded(WEIGHTS | floats, **tokens), "format": "float-quantized"}, "f8e4m3"),
        ({**weights(**floats | {"strategy": "tensor"}), "format": "float-quantized"}, "f8e4m3(channels=1)"),
        ({**weights(**groups), "format": "nvfp4-pack-quantized"}, "nvfp4(channels=1)"),
    ):
        model = imported(MIXTRAL | {"hidden_size": 384, "intermediate_size": 128, "quantization_config": quantization})
        declared = f' as {storage} from "model.layers.{{i}}.block_sparse_moe.experts.*.w'
        assert " ".join(model.text.split()).count(declared) == 3, storage
        titles = [node.operator.title for node in fuse(build(model.text, "m.ein")).nodes]
        assert titles.count("quantized_experts") == 3 * titles.count("attention")


def test_floats_in_blocks_that_divide_no_rows_are_widened_when_they_are_read() -> None:
    blocks = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    odd = LLAMA | {"hidden_size": 256, "intermediate_size": 320, "head_dim": 64, "num_attention_heads": 4}
    found = imported(odd | {"quantization_config": blocks})
    assert found.text == imported(odd).text
    assert any("floats of 8 bits are widened" in note for note in found.notes)
