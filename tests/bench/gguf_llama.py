"""The LLaMA of a plan as a GGUF file with the same weights, which llama.cpp reads.

    python -m tests.bench.gguf_llama PLAN TARGET

Weights keep their types. Quantized ones in groups of 32 are blocks of `Q8_0` and `Q4_0`, which hold the same integers;
their scales become f16. Rows of 8 bits with one scale are blocks with equal scales.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from einc_runtime.dtypes import Array
from einc_runtime.plan.codec import read_bundle
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import LlamaShape, constants, drawn

GROUP = 32
WHOLE = {"table": "token_embd.weight", "g_last": "output_norm.weight", "head": "output.weight"}
LAYER = {
    "g_attn": "attn_norm", "w_q": "attn_q", "w_k": "attn_k", "w_v": "attn_v", "w_o": "attn_output", "g_mlp": "ffn_norm",
    "w_gate": "ffn_gate", "w_up": "ffn_up", "w_down": "ffn_down",
}  # fmt: skip
TYPES = {"float32": Type.F32, "bfloat16": Type.BF16, "float16": Type.F16}


def write(bundle: Bundle, target: str) -> None:
    s, numbers, arrays = LlamaShape.of(bundle), constants(bundle), drawn(bundle)
    shapes = {tensor.name: tensor.shape for tensor in bundle.tensors}
    file = gguf.GGUFWriter(target, "llama")
    vocab, width = shapes["table"]
    file.add_vocab_size(vocab)
    file.add_context_length(s.batch * max(s.tokens, s.cache))
    file.add_embedding_length(width)
    file.add_block_count(s.layers)
    file.add_feed_forward_length(max(shape[0] for name, shape in shapes.items() if ".w_gate" in name))
    file.add_head_count(s.heads)
    file.add_head_count_kv(s.heads_kv)
    file.add_layer_norm_rms_eps(numbers["eps"])
    file.add_rope_dimension_count(s.d_head)
    file.add_rope_freq_base(numbers["theta"])
    file.add_tokenizer_model("none")
    for name in dict.fromkeys(one.name.removesuffix(".values").removesuffix(".scales") for one in bundle.tensors):
        if name in arrays or f"{name}.values" in arrays:
            _add(file, name, arrays)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _add(file: gguf.GGUFWriter, name: str, arrays: dict[str, Array]) -> None:
    *prefix, own = name.split(".")
    if own not in (LAYER if prefix else WHOLE):
        return  # an input
    target = f"blk.{prefix[1]}.{LAYER[own]}.weight" if prefix else WHOLE[own]
    if name in arrays:
        array = arrays[name].astype(np.float32) if own.startswith("g_") else arrays[name]
        file.add_tensor(target, _bytes(lay_out_rows(own, array)), raw_dtype=TYPES[array.dtype.name])
        return
    values, scales = (arrays[f"{name}.{part}"] for part in ("values", "scales"))
    if scales.ndim < values.ndim:  # one for a row
        scales = repeat_scales(scales, values.shape)
    values, scales = lay_out_rows(own, values), lay_out_rows(own, scales)
    wide = values.dtype.name == "int8"
    blocks = pack_8(values, scales) if wide else pack_4(values, scales)
    file.add_tensor(target, blocks, raw_dtype=Type.Q8_0 if wide else Type.Q4_0)


def repeat_scales(scales: Array, shape: tuple[int, ...]) -> Array:
    """Scales of the first dimensions of a matrix of i8 as those of its groups."""
    spread = scales.reshape(*scales.shape, *[1] * (len(shape) - scales.ndim))
    return np.broadcast_to(spread, (*shape[:-1], shape[-1] // GROUP))


def lay_out_rows(own: str, array: Array) -> Array:
    """A matrix with a row for each element of the result; vectors as they are.

    llama.cpp turns neighbours by one angle, einc the element i and the element i + d_head / 2: the rows of queries and
    keys change places.
    """
    if own in ("w_q", "w_k"):
        heads, d_head, width = array.shape
        array = array.reshape(heads, 2, d_head // 2, width).swapaxes(1, 2)
    if own == "w_o":
        return np.ascontiguousarray(array).reshape(array.shape[0], -1)
    return np.ascontiguousarray(array).reshape(-1, array.shape[-1]) if array.ndim > 1 else array


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


def pack_8(values: Array, scales: Array) -> Array:
    """Blocks of a scale and 32 integers."""
    return _join(scales, values.reshape(len(values), -1, GROUP).view(np.uint8))


def pack_4(pairs: Array, scales: Array) -> Array:
    """Blocks of a scale and 16 bytes, each of which has an integer of the first half and the one 16 places after it."""
    stored = pairs.view(np.uint8).reshape(len(pairs), -1, GROUP // 2)
    single = np.stack([stored & 15, stored >> 4], axis=-1).reshape(*stored.shape[:2], GROUP)
    return _join(scales, single[..., : GROUP // 2] | single[..., GROUP // 2 :] << 4)


def _join(scales: Array, stored: Array) -> Array:
    heads = scales.astype(np.float16)[..., None].view(np.uint8)
    return np.concatenate([heads, stored], axis=-1).reshape(len(stored), -1)


def main(plan: str, target: str) -> None:
    write(read_bundle(plan), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
