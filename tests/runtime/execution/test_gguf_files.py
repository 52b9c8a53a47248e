"""GGUF files: what the package `gguf` writes is read as it reads it, to the bit, and broken files are refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from einc_runtime.errors import ArrayFault  # noqa: E402
from einc_runtime.execution.data import gguf_blocks  # noqa: E402
from einc_runtime.execution.data.gguf_file import GgufFile, is_gguf  # noqa: E402
from einc_runtime.execution.data.gguf_weights import view_gguf  # noqa: E402
from einc_runtime.execution.data.weights import read_weights  # noqa: E402
from einc_runtime.plan.schema import Tensor  # noqa: E402
from tests.support import gguf_models, import_configs  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
HEADER = struct.Struct("<4sIQQ")


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def build(tensors: list[tuple[str, tuple[int, ...], int, int]], data: bytes, *entries: bytes, **header: int) -> bytes:
    """A file of tensors (name, extents with columns first, type, place), and entries of metadata as they are."""
    version, count, keys = (
        header.get(n, d) for n, d in (("version", 3), ("count", len(tensors)), ("keys", len(entries)))
    )
    head = HEADER.pack(b"GGUF", version, count, keys) + b"".join(entries)
    for name, extents, kind, place in tensors:
        head += string(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, place)
    return head + b"\0" * (-len(head) % 32) + data


def test_every_type_of_blocks_is_what_the_package_reads_it_to_be():
    rng = np.random.default_rng(1)
    assert {kind.name for kind in gguf_blocks.BLOCK_TYPES.values()} >= gguf_blocks.WIDENING.keys()
    for number, kind in gguf_blocks.BLOCK_TYPES.items():
        known = gguf.GGMLQuantizationType(number)
        assert (kind.name, (kind.elements, kind.bytes)) == (known.name, gguf.constants.GGML_QUANT_SIZES[known])
        if kind.name not in gguf_blocks.WIDENING:
            continue
        data = rng.integers(0, 256, (5, 3 * kind.bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(data, known)
        assert np.array_equal(gguf_blocks.widen_blocks(data, kind.name), expected.reshape(-1), equal_nan=True)


def test_metadata_and_tensors_are_those_of_the_package(tmp_path: Path):
    rng, file = np.random.default_rng(2), tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_custom_alignment(64)
    entries = {
        "a.flag": True,
        "a.text": "é\n",
        "a.count": 7,
        "a.scale": 0.5,
        "a.names": ["x", "", "yy"],
        "a.ids": [3, -1],
    }
    gguf_models.add_entries(writer, entries)
    arrays = {"w": rng.standard_normal((3, 64)), "v": rng.standard_normal(7), "h": rng.standard_normal((2, 3, 5))}
    types = {"w": gguf.GGMLQuantizationType.Q8_0, "h": gguf.GGMLQuantizationType.BF16}
    for name, array in arrays.items():
        kind = types.get(name, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(name, gguf.quants.quantize(array.astype(np.float32), kind), raw_dtype=kind)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    read, known = GgufFile(str(file)), gguf.GGUFReader(str(file))
    assert is_gguf(str(file))
    for key, value in entries.items():
        found = read.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value
    assert [(t.name, list(t.shape)[::-1]) for t in known.tensors] == [
        (n, list(t.shape)) for n, t in read.tensors.items()
    ]
    view = view_gguf(read)
    for tensor in known.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(arrays[tensor.name].shape)
        stored = view.find(tensor.name)
        found = stored.read(None).astype(np.float32)
        if f"{tensor.name}_scale" in view.names:
            found = found * view.find(f"{tensor.name}_scale").read(None).repeat(32, axis=-1)
        assert np.array_equal(found, expected), tensor.name


GOOD = [("a", (2, 3), 0, 0), ("b", (5,), 30, 32)]
DATA = np.arange(6, dtype="<f4").tobytes() + b"\0" * 8 + np.arange(5, dtype="<u2").tobytes()
BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "mark": (lambda: b"GGML" + build(GOOD, DATA)[4:], "is no GGUF file"),
    "first version": (lambda: build(GOOD, DATA, version=1), "version 1"),
    "other byte order": (lambda: build(GOOD, DATA, version=3 << 24), "version 50331648"),
    "counts": (lambda: build(GOOD, DATA, count=1 << 40), "1,099,511,627,776 tensors"),
    "keys": (lambda: build(GOOD, DATA, keys=1 << 17), "entries of metadata"),
    "key twice": (lambda: build(GOOD, DATA, *[string("k") + struct.pack("<IB", 0, 1)] * 2), "'k' twice"),
    "type of an entry": (lambda: build(GOOD, DATA, string("k") + struct.pack("<I", 13)), "is of type 13"),
    "lists of lists": (lambda: build(GOOD, DATA, string("k") + struct.pack("<IIQ", 9, 9, 1)), "elements of type 9"),
    "long list": (lambda: build(GOOD, DATA, string("k") + struct.pack("<IIQ", 9, 0, 1 << 50)), "too many for"),
    "long list of texts": (lambda: build(GOOD, DATA, string("k") + struct.pack("<IIQ", 9, 8, 999)), "999 texts"),
    "long text": (lambda: build(GOOD, DATA, string("k") + struct.pack("<IQ", 8, 1 << 60)), "it ends"),
    "long key": (lambda: build(GOOD, DATA, struct.pack("<Q", 1 << 20) + b"k" * 99), "1,048,576 bytes"),
    "key of other bytes": (lambda: build(GOOD, DATA, struct.pack("<Q", 1) + b"\xff"), "no text in UTF-8"),
    "alignment": (lambda: build(GOOD, DATA, string("general.alignment") + struct.pack("<II", 4, 48)), "a power of two"),
    "axes": (lambda: build([("a", (1,) * 5, 0, 0)], DATA), "5 dimensions"),
    "no elements": (lambda: build([("a", (3, 0), 0, 0)], DATA), "which cannot be"),
    "overflow": (lambda: build([("a", (1 << 62, 4), 0, 0)], DATA), "which cannot be"),
    "part of a block": (lambda: build([("a", (31, 2), 8, 0)], DATA), "rows of blocks of 32"),
    "unknown type": (lambda: build([("a", (32,), 200, 0)], DATA), "'a' has elements of type 200"),
    "gap": (lambda: build([("a", (2, 3), 0, 0), ("b", (5,), 30, 64)], DATA), "begins at 64, not at 32"),
    "overlap": (lambda: build([("a", (2, 3), 0, 0), ("b", (5,), 30, 0)], DATA), "begins at 0, not at 32"),
    "twice": (lambda: build([GOOD[0], ("a", (5,), 30, 32)], DATA), "two tensors 'a'"),
    "cut off": (lambda: build(GOOD, DATA[:-1]), "the file is too short"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_error(name: str, tmp_path: Path):
    make, message = BROKEN[name]
    file = tmp_path / "b.gguf"
    file.write_bytes(make())
    with pytest.raises(ArrayFault) as caught:
        GgufFile(str(file))
    assert message in caught.value.message
    assert caught.value.where == str(file)


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path):
    whole, file = build(GOOD, DATA, string("k") + struct.pack("<I", 8) + string("text")), tmp_path / "c.gguf"
    file.write_bytes(whole)
    assert list(GgufFile(str(file)).tensors) == ["a", "b"]
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ArrayFault):
            GgufFile(str(file))


def draw_weights(config: dict[str, Any], rng: np.random.Generator) -> dict[str, Array]:
    """Weights of some parts of a decoder with one layer."""
    d_model, d_ff, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    rows = {"self_attn.q_proj": 4 * width, "self_attn.k_proj": 2 * width, "mlp.up_proj": d_ff}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (7, d_model), "model.norm.weight": (d_model,)}
    for layer in range(2):
        shapes |= {f"model.layers.{layer}.{name}.weight": (count, d_model) for name, count in rows.items()}
        shapes |= {f"model.layers.{layer}.self_attn.q_proj.bias": (4 * width,)}
        shapes |= {f"model.layers.{layer}.{config['mlp']}": (d_ff, d_model) for _ in [0] if config["mlp"]}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "mixtral"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q6_K"])
def test_weights_have_the_names_and_the_order_of_published_folders(architecture: str, kind: str, tmp_path: Path):
    mlp = {"mixtral": "block_sparse_moe.experts.0.w1.weight"}.get(architecture, "")
    config = import_configs.LLAMA | {
        "model_type": architecture, "hidden_size": 256, "intermediate_size": 64, "head_dim": 12, "mlp": mlp,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": {"rope_theta": 1e4},
    }  # fmt: skip
    weights = draw_weights(config, np.random.default_rng(3))
    file = tmp_path / "m.gguf"
    expected = gguf_models.write_model(config, weights, file, kind)
    view = view_gguf(GgufFile(str(file)))
    for name, array in expected.items():
        is_integer = kind in ("Q8_0", "Q4_0") and array.ndim > 1 and "embed" not in name
        assert (f"{name}_scale" in view.names) == is_integer
        shape = array.shape
        if is_integer:
            bits = "i8" if kind == "Q8_0" else "i4x2"
            width = shape[1] if kind == "Q8_0" else shape[1] // 2
            declared = Tensor("v", ("i", "k"), (shape[0], width), bits, "weight", stored=name)
            scales = Tensor("s", ("i", "k"), (shape[0], shape[1] // 32), "f16", "weight", stored=f"{name}_scale")
            read = read_weights([declared, scales], file)
            values = read["v"] if kind == "Q8_0" else unpack(read["v"])
            found = values.astype(np.float32) * read["s"].astype(np.float32).repeat(32, axis=1)
        else:
            found = read_weights([Tensor("w", tuple("ij"[: array.ndim]), shape, "f32", "weight", stored=name)], file)[
                "w"
            ]
        tolerance = 1e-6 if "norm" in name and architecture == "gemma2" else 0  # 1 was added and is subtracted
        assert np.abs(found - array).max() <= tolerance, name


def unpack(pairs: Array) -> Array:
    """The integers of pairs of 4 bits, as plans have them."""
    stored = pairs.view(np.uint8)
    return np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(pairs), -1).astype(np.int8) - 8


def test_tensors_of_one_name_and_several_types_are_widened(tmp_path: Path):
    config = import_configs.LLAMA | {"model_type": "llama", "hidden_size": 256, "head_dim": 12, "mlp": "",
                                     "num_attention_heads": 4, "rope_parameters": {"rope_theta": 1e4}}  # fmt: skip
    weights, file = draw_weights(config, np.random.default_rng(4)), tmp_path / "m.gguf"
    expected = gguf_models.write_model(config, weights, file, "Q4_0", {"layers.1.self_attn.q": "Q8_0"})
    view = view_gguf(GgufFile(str(file)))
    scaled = {name.removesuffix("_scale") for name in view.names if name.endswith("_scale")}
    assert scaled == {f"model.layers.{n}.{p}.weight" for n in (0, 1) for p in ("self_attn.k_proj", "mlp.up_proj")}
    for layer in (0, 1):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        assert np.array_equal(view.find(name).read(None), expected[name])


def test_a_type_that_cannot_be_widened_is_named(tmp_path: Path):
    data = b"\0" * (gguf_blocks.BYTES_PER_BLOCK["IQ4_XS"] * 2)
    file = tmp_path / "m.gguf"
    file.write_bytes(build([("blk.0.attn_v.weight", (256, 2), 23, 0)], data))
    tensor = Tensor("w", ("i", "j"), (2, 256), "f32", "weight", stored="model.layers.0.self_attn.v_proj.weight")
    with pytest.raises(ArrayFault, match="IQ4_XS"):
        read_weights([tensor], file)
    assert math.prod(GgufFile(str(file)).tensors["blk.0.attn_v.weight"].shape) == 512
