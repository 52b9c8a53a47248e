"""The configuration that a GGUF file's metadata describes, as published folders have it in their config.json.

llama.cpp decides some things by the architecture alone; they are stated here as it has them. A key of the architecture
that is not known may change what is computed, and is an error, as is a tensor that the architecture does not have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from einc.errors import Diagnostic, ModelError
from einc.importers.families import DECODER_FAMILIES
from einc_runtime.text import escape_text

_GGUF_ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "phi3": "phi3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3_text", "olmo2": "olmo2",
}  # fmt: skip
"""What transformers calls the architectures. Mistral's is called llama; with experts it is Mixtral's."""
_NUMBER_FIELDS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
"""Numbers that every file has."""
_HARMLESS = frozenset(("vocab_size", "rope.scaling.finetuned"))
_GEMMA_LARGEST = {("gemma2", 46): 128, ("gemma3", 62): 168}
"""By architecture and number of layers, what scores are divided by the root of, where that is not a head's width: in
Gemma 2 27B and Gemma 3 27B, the width of the model divided among the heads (their files do not say it)."""
ROTATION_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that say how fast pairs of elements are rotated."""
_GELU = "gelu_pytorch_tanh"
_MAX_STATED = 5  # unknown keys or tensors that are named


class GgufDescription:
    """What the importer needs of a file: the `metadata` by key, the type and shape of each tensor by the file's names,
    the names that tensors have in published folders, the elements of those that ROTATION_TENSORS names, and the types
    that can be read."""

    def __init__(
        self,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, tuple[str, tuple[int, ...]]],
        names: Collection[str],
        factors: Mapping[str, Sequence[float]],
        readable: Collection[str],
    ) -> None:
        self.metadata, self.tensors, self.names, self.factors = metadata, tensors, names, factors
        self.readable = readable


def describe_configuration(file: GgufDescription, where: str) -> bytes:
    """A config.json. Raises ModelError with all that is missing, or that einc does not know."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _GGUF_ARCHITECTURES:
        stated = escape_text(str(architecture), 60)
        hint = f"supported are {', '.join(_GGUF_ARCHITECTURES)}"
        raise ModelError([Diagnostic(f"{where}: the architecture {stated} is not supported", None, hint)])
    if isinstance(parts := file.metadata.get("split.count"), int) and parts > 1:
        hint = "`llama-gguf-split --merge` makes one file of them"
        raise ModelError([Diagnostic(f"{where}: it is one of {parts} parts of a model", None, hint)])
    reader = _GgufReader(file, architecture)
    config = reader.read()
    if reader.problems:
        raise ModelError([Diagnostic(f"{where}: {problem}", None, None) for problem in reader.problems])
    return json.dumps(config).encode()


class _GgufReader:
    def __init__(self, file: GgufDescription, architecture: str) -> None:
        self._file, self._architecture = file, architecture
        self._kind = _GGUF_ARCHITECTURES[architecture]
        self.problems: list[str] = []
        self._known: set[str] = set(_HARMLESS)

    def read(self) -> dict[str, Any]:
        if self._architecture == "llama" and self._number("expert_count", 0):
            self._kind = "mixtral"
        config: dict[str, Any] = {
            "model_type": self._kind, "architectures": [DECODER_FAMILIES[self._kind].architecture],
            "hidden_act": "silu", "tie_word_embeddings": "output.weight" not in self._tensors,
            "dtype": self._choose_type(), "vocab_size": self._tensors.get("token_embd.weight", ("", (0,)))[1][0],
        }  # fmt: skip
        config |= {name: self._number(key) for key, name in _NUMBER_FIELDS.items()}
        heads = int(config["num_attention_heads"]) or 1
        config["num_key_value_heads"] = self._number("attention.head_count_kv", heads)
        config["head_dim"] = width = int(self._number("attention.key_length", config["hidden_size"] // heads))
        if (values := self._number("attention.value_length", width)) != width:
            self.problems.append(f"keys have {width} elements and values {values}, which is not supported")
        if self._value("attention.causal") is False:
            self.problems.append(f"{self._architecture}.attention.causal is false, which is not supported")
        config |= self._read_kind(config, heads)
        config |= self._read_rotation(config, width) | self._read_quantization()
        self._check_unknown()
        return {name: value for name, value in config.items() if value is not None or name == "sliding_window"}

    @property
    def _tensors(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        return self._file.tensors

    def _value(self, key: str) -> Any:
        self._known.add(key)
        return self._file.metadata.get(f"{self._architecture}.{key}")

    def _number(self, key: str, default: Any = None) -> Any:
        """A number of the architecture. A list of numbers, one for each layer, is none."""
        value = self._value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            complaint = "missing" if value is None else f"{escape_text(repr(value), 60)}, and a number was expected"
            self.problems.append(f"{self._architecture}.{key} is {complaint}")
            return 1
        return value

    def _choose_type(self) -> str:
        """The type of computations. Blocks are widened or have scales of f16. Gemma's numbers do not fit into f16."""
        kinds = {kind for kind, shape in self._tensors.values() if len(shape) > 1} - {"F32"}
        if not kinds or (kinds != {"BF16"} and ("BF16" in kinds or self._architecture.startswith("gemma"))):
            return "float32"
        return "bfloat16" if kinds == {"BF16"} else "float16"

    def _read_kind(self, config: Mapping[str, Any], heads: int) -> dict[str, Any]:
        """What some architectures have, and others do not."""
        window = self._value("attention.sliding_window")
        parts = {"attention_bias": "attn_q", "mlp_bias": "ffn_down"}
        fields: dict[str, Any] = {
            name: f"blk.0.{parts[name]}.bias" in self._tensors for name in DECODER_FAMILIES[self._kind].biases
        }
        if self._architecture.startswith("gemma"):
            fields |= {"hidden_act": None, DECODER_FAMILIES[self._kind].activation_field: _GELU}
        if self._kind in ("mixtral", "qwen3_moe"):
            fields["num_local_experts" if self._kind == "mixtral" else "num_experts"] = self._number("expert_count")
            fields["num_experts_per_tok"] = self._number("expert_used_count")
            width = self._number("expert_feed_forward_length", config["intermediate_size"])
            fields |= {"intermediate_size": width}
            if self._kind == "qwen3_moe":
                fields |= {"moe_intermediate_size": width, "norm_topk_prob": True}  # llama.cpp has it so
        if self._kind in ("mixtral", "phi3"):
            fields["sliding_window"] = window
        elif self._architecture in ("gemma2", "gemma3"):
            fields["sliding_window"] = self._number("attention.sliding_window", DECODER_FAMILIES[self._kind].window)
            layers = (self._architecture, int(config["num_hidden_layers"]))
            largest = config["hidden_size"] // heads if layers in _GEMMA_LARGEST else config["head_dim"]
            fields["query_pre_attn_scalar"] = largest
            pattern = self._value("attention.sliding_window_pattern")
            fields["sliding_window_pattern"] = DECODER_FAMILIES[self._kind].period if pattern is None else pattern
            if self._architecture == "gemma2":
                fields["attn_logit_softcapping"] = self._number("attn_logit_softcapping", 50.0)
                fields["final_logit_softcapping"] = self._number("final_logit_softcapping", 30.0)
            elif (cap := self._value("final_logit_softcapping")) is not None:
                fields["final_logit_softcapping"] = cap
        elif window is not None:
            self.problems.append(f"{self._architecture}.attention.sliding_window is {escape_text(repr(window), 40)}")
        return fields

    def _read_rotation(self, config: Mapping[str, Any], width: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rope_theta": float(self._number("rope.freq_base", DECODER_FAMILIES[self._kind].theta))
        }
        rotated = int(self._number("rope.dimension_count", width))
        if self._kind == "phi3":
            fields["partial_rotary_factor"] = rotated / max(1, width)
        elif rotated != width:
            self.problems.append(f"{rotated} of {width} elements of each head are rotated, which is not supported")
        if self._kind == "gemma3_text":
            fields["rope_local_base_freq"] = float(self._number("rope.freq_base_swa", 10000.0))
        kind, factor = self._value("rope.scaling.type"), self._number("rope.scaling.factor", 1.0)
        original = self._value("rope.scaling.original_context_length")
        short = self._file.factors.get("rope_factors_short.weight", self._file.factors.get("rope_freqs.weight"))
        if short is not None:
            stated = self._value("rope.scaling.attn_factor")
            is_phi = "rope_factors_short.weight" in self._file.factors
            fields["rope_scaling"] = {
                "rope_type": "longrope", "short_factor": list(short), "long_factor": list(short),
                **({"attention_factor": stated if is_phi and stated else 1.0} if stated or not is_phi else {}),
            }  # fmt: skip
            fields["original_max_position_embeddings"] = original if is_phi else config["max_position_embeddings"]
        elif kind in ("linear", "yarn"):
            fields["rope_scaling"] = {"rope_type": kind, "factor": factor}
            if kind == "yarn":
                fields["rope_scaling"]["original_max_position_embeddings"] = original
        elif kind not in (None, "none"):
            self.problems.append(
                f"{self._architecture}.rope.scaling.type {escape_text(str(kind), 40)} is not supported"
            )
        return fields

    def _read_quantization(self) -> dict[str, Any]:
        """What the integers that stay so are like, in the words of compressed-tensors."""
        scaled = [name.removesuffix("_scale") for name in self._file.names if name.endswith(".weight_scale")]
        if not scaled:
            return {}
        kinds = {kind for name, (kind, _) in self._tensors.items() if name != "token_embd.weight"}
        bits = 8 if "Q8_0" in kinds else 4
        return {"quantization_config": describe_groups(bits)}

    def _check_unknown(self) -> None:
        start = f"{self._architecture}."
        keys = [key for key in self._file.metadata if key.startswith(start) and key[len(start) :] not in self._known]
        strange = [name for name in self._file.names if re.match(r"blk\.", name)]
        outer = {"output.weight", "token_embd.weight", "output_norm.weight", *ROTATION_TENSORS}
        strange += [name for name in self._tensors if not name.startswith("blk.") and name not in outer]
        unread = [(name, kind) for name, (kind, _) in self._tensors.items() if kind not in self._file.readable]
        for name, kind in unread[:_MAX_STATED]:
            known = ", ".join(sorted(self._file.readable))
            self.problems.append(f"the tensor '{escape_text(name, 80)}' is of type {kind}, and {known} can be read")
        for statement, names in (("it says", keys), ("it has the tensor", strange)):
            for name in sorted(names)[:_MAX_STATED]:
                self.problems.append(
                    f"{statement} '{escape_text(name, 80)}', which einc does not know for {self._architecture}"
                )


def describe_groups(bits: int) -> dict[str, Any]:
    weights = {
        "num_bits": bits, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group", "group_size": 32,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": "int-quantized" if bits == 8 else "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
