"""`einc quantize`: rounding against a search for the nearest, and folders that run as the weights they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from einc.cli.main import main
from einc.quantizing.rounding import Array, RoundingScheme, pack_words, round_rows
from einc_runtime.cli.files import read_plan
from einc_runtime.execution.session import Session
from einc_runtime.plan.element_types import STORED_FORMS

DEPTH, HEADS, WIDTH, WORDS = 96, 3, 64, 41
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "hidden_size": DEPTH,
    "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1,
    "head_dim": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "torch_dtype": "float32", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
I8, I4 = STORED_FORMS["i8"], STORED_FORMS["i4"]
SCHEMES = [RoundingScheme(I8), RoundingScheme(I8, 32, True), RoundingScheme(I4, 32), RoundingScheme(I4, 96, True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model in two files with an index, and a file beside them."""
    rng = np.random.default_rng(1)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens": (WORDS, DEPTH), "model.norm": (DEPTH,), "lm_head": (WORDS, DEPTH),
        **{f"{layer}{name}": (DEPTH,) for name in ("input_layernorm", "post_attention_layernorm")},
        f"{layer}self_attn.q_proj": (DEPTH, DEPTH), f"{layer}self_attn.k_proj": (32, DEPTH),
        f"{layer}self_attn.v_proj": (32, DEPTH), f"{layer}self_attn.o_proj": (DEPTH, DEPTH),
        f"{layer}mlp.gate_proj": (WIDTH, DEPTH), f"{layer}mlp.up_proj": (WIDTH, DEPTH),
        f"{layer}mlp.down_proj": (DEPTH, WIDTH),
    }  # fmt: skip
    arrays = {f"{n}.weight": (rng.standard_normal(s) / s[-1] ** 0.5).astype("f4") for n, s in shapes.items()}
    folder = tmp_path / "model"
    folder.mkdir()
    names = sorted(arrays)
    files = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, tensors in files.items():
        safetensors.numpy.save_file({name: arrays[name] for name in tensors}, folder / file)
    index = {"weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def load_file(path: Path) -> dict[str, Array]:
    """By the definition of the format, as safetensors' own reader for numpy has no floats of 8 bits."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    kinds = {"F32": "<f4", "I8": "i1", "I32": "<i4", "U8": "u1", "F8_E4M3": ml_dtypes.float8_e4m3fn}
    return {
        name: np.frombuffer(data[start:], np.uint8)[slice(*row["data_offsets"])]
        .view(kinds[row["dtype"]])
        .reshape(row["shape"])
        for name, row in header.items()
        if name != "__metadata__"
    }


def widened(folder: Path) -> dict[str, Array]:
    """The weights that a folder stands for, by the documented formulas of compressed-tensors."""
    stored: dict[str, Array] = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)

    def unpack(words: Array) -> Array:
        nibbles = [(words.view("u4") >> np.uint32(4 * nibble)) & np.uint32(15) for nibble in range(8)]
        return np.stack(nibbles, axis=-1).reshape(len(words), -1).astype("i8") - 8

    results = {}
    for name, array in stored.items():
        base = name.removesuffix("_packed")
        if array.dtype == np.uint8 and name != base:
            halves = np.stack([array & 15, array >> 4], -1).reshape(len(array), -1).view(ml_dtypes.float4_e2m1fn)
            scales = stored[f"{base}_scale"]
            if scales.dtype == np.uint8:
                each = scales.view(ml_dtypes.float8_e8m0fnu).astype("f4")
            else:
                each = scales.astype("f4") / stored[f"{base}_global_scale"]
            results[base] = halves.astype("f4") * np.repeat(each, halves.shape[1] // each.shape[1], 1)
            continue
        if name.endswith(("_scale", "_scale_inv")):
            continue
        if array.dtype == ml_dtypes.float8_e4m3fn:
            blocks = stored.get(f"{name}_scale_inv")
            each = stored[f"{name}_scale"] if blocks is None else np.repeat(np.repeat(blocks, 128, 0), 128, 1)
            if each.dtype == np.uint8:
                each = np.repeat(each.view(ml_dtypes.float8_e8m0fnu).astype("f4"), 32, 1)
            results[name] = array.astype("f4") * each[: len(array), : array.shape[1]]
            continue
        if f"{base}_scale" not in stored:
            if not name.endswith("_zero_point"):
                results[name] = array
            continue
        numbers, scales = unpack(array) if array.dtype == np.int32 else array.astype("i8"), stored[f"{base}_scale"]
        zeros = stored.get(f"{base}_zero_point")
        if zeros is not None and zeros.dtype == np.int32:
            zeros = unpack(np.ascontiguousarray(zeros.T)).T[: len(numbers)]
        group = numbers.shape[1] // scales.shape[1]
        for n, k in np.ndindex(*scales.shape):
            numbers[n, k * group : (k + 1) * group] -= 0 if zeros is None else int(zeros[n, k])
        results[base] = (numbers * np.repeat(scales.astype("f8"), group, 1)).astype("f4")
    return results


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("kind", ["f4", ml_dtypes.bfloat16])
def test_every_element_becomes_the_nearest_integer(scheme: RoundingScheme, kind: Any) -> None:
    weight = (np.random.default_rng(4).standard_normal((5, 96)) * 0.03).astype(kind)
    weight[2] = 0
    rounded = round_rows(weight, scheme)
    group = scheme.group or 96
    levels = np.arange(scheme.low, -scheme.low)
    for n, k in np.ndindex(5, 96):
        scale = float(rounded.scales[n, k // group])
        zero = 0 if rounded.zeros is None else int(rounded.zeros[n, k // group])
        errors = np.abs((levels - zero) * scale - float(weight[n, k]))
        error = abs((int(rounded.values[n, k]) - zero) * scale - float(weight[n, k]))
        assert error <= errors.min() + 1e-7
    change = np.sqrt(rounded.lost / rounded.square)
    assert 0 < change < (0.01 if scheme.bits == 8 else 0.12)
    assert rounded.scales.dtype == weight.dtype


def test_the_largest_element_is_exact_without_zero_points() -> None:
    weight = np.array([[0.5, -0.25, 0.125, -4.0] * 8], "f4")
    rounded = round_rows(weight, RoundingScheme(I4))
    assert (rounded.values.min(), rounded.values.max(), float(rounded.scales[0, 0])) == (-8, 1, 0.5)
    assert pack_words(np.array([[-8, 7, 0, 0, 0, 0, 0, -8, 1]]), 4).view("u4").tolist() == [[0x088888F0, 9]]


SLOW = [pytest.param(options, marks=pytest.mark.slow) for options in ("--bits 8", "--bits 8 --group 32 --zeros --head")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        "--bits 4 --group 32 --zeros",
        "--bits f8",
        "--bits f8 --group 128",
        "--bits nvfp4",
        pytest.param("--bits mxfp4", marks=pytest.mark.slow),
        pytest.param("--bits mxfp8", marks=pytest.mark.slow),
        *SLOW,
        pytest.param("", marks=pytest.mark.slow),
    ],
)
def test_a_folder_runs_as_the_weights_it_stands_for(
    options: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantized = tmp_path / "made"
    assert main(["quantize", str(folder), "-o", str(quantized), *options.split(), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    weights, before = widened(quantized), widened(folder)
    assert weights.keys() == before.keys()
    tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert len(tensors) == 7 + ("--head" in options)
    for name, array in before.items():
        lost = np.linalg.norm(weights[name] - array) / np.linalg.norm(array)
        assert lost == pytest.approx(tensors[name]["relative_error"] if name in tensors else 0, rel=1e-4)
    assert document["bytes"] < document["bytes_before"] / 2
    results = []
    for source, text in ((quantized, quantized), (weights, folder)):
        model, plan = tmp_path / "m.ein", tmp_path / "m.bin"
        assert main(["import", "hf", str(text), "-o", str(model), "--tokens", "5", "--logits", "all"]) == 0
        bits = options.removeprefix("--bits ")
        kept = f"] as {bits} " if "fp" in bits else "] as f8e4m3 " if "f8" in options else "] as i"
        assert (kept in model.read_text()) == (
            source is quantized and options != "--bits f8 --group 128"
        )  # 96 are no block
        assert main(["compile", str(model), "-o", str(plan), "-m", "host", "--devices", "1"]) == 0
        with Session(read_plan(str(plan))) as session:
            session.load_weights(source)
            session.load("ids", np.array([3, 7, 1, 40, 9]))
            session.execute()
            results.append(session.offload("logits"))
    np.testing.assert_allclose(results[0], results[1], atol=2e-5)
    assert (quantized / "tokenizer.json").exists()


def test_a_folder_may_say_that_products_round_activations(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Published W8A8 models have this configuration. Results are those of the weights alone, less exactly."""
    results, text = [], ""
    for name, options in (("plain", []), ("rounded", ["--round-inputs"])):
        quantized, model, plan = tmp_path / name, tmp_path / f"{name}.ein", tmp_path / f"{name}.bin"
        assert main(["quantize", str(folder), "-o", str(quantized), *options]) == 0
        assert main(["import", "hf", str(quantized), "-o", str(model), "--tokens", "5", "--logits", "all"]) == 0
        assert main(["compile", str(model), "-o", str(plan), "-m", "host", "--devices", "1"]) == 0
        with Session(read_plan(str(plan))) as session:
            session.load_weights(quantized)
            results.append(session.run({"ids": np.array([3, 7, 1, 40, 9])})["logits"])
        text = model.read_text()
    assert text.count("inputs=8") == 7
    scheme = json.loads((tmp_path / "rounded/config.json").read_text())["quantization_config"]["config_groups"]
    inputs = scheme["group_0"]["input_activations"]
    assert inputs == {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    lost = np.linalg.norm(results[1] - results[0]) / np.linalg.norm(results[0])
    assert 1e-4 < lost < 0.03
    capfd.readouterr()
    for options in (["--bits", "4"], ["--group", "32"], ["--zeros"]):
        assert main(["quantize", str(folder), "-o", str(tmp_path / "no"), "--round-inputs", *options]) == 2
        assert "with a scale for each row" in capfd.readouterr().err


@pytest.mark.slow
def test_a_model_with_rounded_activations_goes_on_alike_on_more_sites(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantized, texts = str(tmp_path / "made"), []
    assert main(["quantize", str(folder), "-o", quantized, "--round-inputs"]) == 0
    words = ["generate", quantized, "3,7,1", "--ids", "--max-tokens", "9", "--temperature", "0", "--json"]
    for sites in ("1", "3"):
        capfd.readouterr()
        assert main([*words, "--sites", sites, "--plans", str(tmp_path / "plans")]) == 0
        texts.append([sequence["tokens"] for sequence in json.loads(capfd.readouterr().out)["sequences"]])
    assert texts[0] == texts[1]


def test_nothing_is_left_of_a_folder_that_fails(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    quantized = tmp_path / "made"
    arrays = safetensors.numpy.load_file(folder / "b.safetensors")
    name = next(name for name in arrays if "proj" in name)
    arrays[name][1, 2] = np.nan
    safetensors.numpy.save_file(arrays, folder / "b.safetensors")
    assert main(["quantize", str(folder), "-o", str(quantized)]) == 65
    assert "not finite" in capfd.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model"]
    assert main(["quantize", str(folder), "-o", str(quantized), "--bits", "4", "--group", "64"]) == 65
    assert "no multiple of 64" in capfd.readouterr().err
    assert main(["quantize", str(folder), "-o", str(folder)]) == 2
    assert main(["quantize", str(folder), "-o", str(quantized), "--group", "48"]) == 2
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {}}))
    assert main(["quantize", str(folder), "-o", str(quantized)]) == 2
    assert "quantized already" in capfd.readouterr().err
