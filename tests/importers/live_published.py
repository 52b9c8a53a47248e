"""Folders of tiny models of families that transformers builds: `einc generate` makes its greedy tokens."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from einc.cli.main import main
from tests.serve.running import serving
from tests.support.generation_cases import word_tokenizer
from tests.support.tiny_models import make_causal

FAMILIES = ("bloom", "falcon", "gpt2", "gpt_neox", "gpt_oss", "mamba", "olmo2", "olmoe", "opt", "phi", "xlstm")
PROMPT, NEW = (5, 17, 33, 9, 21), 12
FURTHER = ((8, 2, 41), (30,))
SPREAD = 8.0
"""Weights of fresh models are so small that all tokens are alike; with larger ones they differ."""


def make_folder(family: str, folder: Path, **chosen: Any) -> torch.nn.Module:
    module = make_causal(family, **chosen).model
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(SPREAD)
    module.save_pretrained(folder)
    return module


def change_config(folder: Path, change: dict[str, Any]) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))


def continue_greedily(module: torch.nn.Module, prompt: Sequence[int] = PROMPT) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(NEW):
            logits = module(input_ids=ids, use_cache=False).logits[0, -1]
            ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    tokens: list[int] = ids[0, len(prompt) :].tolist()
    ends = [position for position, token in enumerate(tokens) if token == module.config.eos_token_id]
    return tokens[: ends[0] + 1] if ends else tokens


Capture = pytest.CaptureFixture[str]


def run(capfd: Capture, *arguments: str | Path) -> str:
    """The standard output of a command that succeeds."""
    code = main(list(map(str, arguments)))
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


def generate(capfd: Capture, folder: Path, plans: Path, *prompts: str) -> list[list[int]]:
    options = ["--ids", "--max-tokens", str(NEW), "--json", "--plans", plans]
    answer = json.loads(run(capfd, "generate", folder, ",".join(map(str, PROMPT)), *prompts, *options))
    return [sequence["tokens"] for sequence in answer["sequences"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family: str, tmp_path: Path, capfd: Capture) -> None:
    """Of several prompts at once; each of their sequences has its own state."""
    module = make_folder(family, tmp_path / "model")
    expected = [continue_greedily(module, prompt) for prompt in (PROMPT, *FURTHER)]
    assert len({tuple(tokens) for tokens in expected}) > 1 or family == "bloom"
    further = [",".join(map(str, prompt)) for prompt in FURTHER]
    assert generate(capfd, tmp_path / "model", tmp_path / "plans", *further) == expected


def test_names_without_the_prefix_of_the_model_and_several_prompts(tmp_path: Path, capfd: Capture) -> None:
    """As the files of gpt2 have them; the text is kept, so that the second time builds no module."""
    module = make_folder("gpt2", tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    stored = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file(stored, file, {"format": "pt"})
    expected = continue_greedily(module)
    for _ in range(2):
        assert generate(capfd, tmp_path / "model", tmp_path / "plans", "5,17,33,9,21") == [expected, expected]
    assert len(list((tmp_path / "plans").glob("*.json"))) == 2


def test_a_text_and_what_is_beside_it(tmp_path: Path, capfd: Capture) -> None:
    make_folder("bloom", tmp_path / "model")
    text, plan, constants = (tmp_path / f"bloom.{end}" for end in ("ein", "bin", "constants.safetensors"))
    run(capfd, "import", "hf", tmp_path / "model", "-o", text, "--tokens", "10")
    run(capfd, "compile", text, "-m", "host", "-o", plan)
    weights = ["--weights", tmp_path / "model", "--weights", constants]
    run(capfd, "run", plan, "--inputs", "rand:0", *weights)
    assert "for every weight" in run(capfd, "verify", plan, *weights)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"n_layer": 3}, "have no 'transformer.h.2.ln_1.weight'"),
        ({"n_embd": 33}, "cannot be imported: `embed_dim` must be divisible"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights of .gptq. are not supported"),
        ({"n_positions": 2**40}, "more memory|not enough memory|can't allocate|GiB"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(change: dict[str, Any], problem: str, tmp_path: Path, capfd: Capture) -> None:
    make_folder("gpt2", tmp_path / "model")
    change_config(tmp_path / "model", change)
    assert main(["import", "hf", str(tmp_path / "model"), "-o", str(tmp_path / "m.ein")]) == 65
    assert re.search(problem, capfd.readouterr().err)
    assert not (tmp_path / "m.ein").exists()


def narrow_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix as floats of 8 bits, the scales of its blocks, and what both stand for."""
    counts = [-(-extent // 128) for extent in weight.shape]
    scales = torch.tensor([[part.abs().max() / 448 for part in line.split(128, 1)] for line in weight.split(128)])
    spread = scales.repeat_interleave(128, 0)[: len(weight)].repeat_interleave(128, 1)[:, : weight.shape[1]]
    narrow = (weight / spread).to(torch.float8_e4m3fn)
    assert list(scales.shape) == counts
    return narrow, scales, narrow.float() * spread


def find_text(plans: Path) -> str:
    """What is kept of a text that `einc generate` planned."""
    return "".join(path.read_text() for path in plans.glob("*.json"))


BLOCKS_OF_128 = dict.fromkeys(
    ("hidden_size", "moe_intermediate_size", "intermediate_size", "q_lora_rank", "kv_lora_rank", "v_head_dim"), 128
) | {"n_routed_experts": 3}


@pytest.mark.parametrize(("sizes", "kept"), [({}, 0), (BLOCKS_OF_128, 16)], ids=["widened", "stored"])
def test_floats_of_8_bits(sizes: dict[str, int], kept: int, tmp_path: Path, capfd: Capture) -> None:
    """With scales of blocks, as DeepSeek publishes its models; each expert is a tensor there. They are read as they are
    stored where blocks divide rows."""
    module = make_folder("deepseek_v3", tmp_path / "model", **sizes)
    file = tmp_path / "model" / "model.safetensors"
    stored = load_file(file)
    wide = dict(stored)
    for name in [name for name in stored if name.endswith("_proj.weight")]:
        stored[name], stored[f"{name}_scale_inv"], wide[name] = narrow_blocks(stored[name])
    assert sum(".experts." in name and name.endswith("_scale_inv") for name in stored) >= 9
    save_file(wide, file, {"format": "pt"})
    expected = continue_greedily(type(module).from_pretrained(tmp_path / "model", dtype=torch.float32).eval())
    save_file(stored, file, {"format": "pt"})
    quantized = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    change_config(tmp_path / "model", {"quantization_config": quantized})
    assert generate(capfd, tmp_path / "model", tmp_path / "plans") == [expected]
    assert find_text(tmp_path / "plans").count("as f8e4m3(group=128") == kept


def read_integers(stored: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A matrix of integers of 4 bits, each stored plus 8, eight in a word from the lowest bits on."""
    words, scales = stored[f"{name}_packed"], stored[f"{name}_scale"]
    values = torch.stack([(words >> shift & 15) - 8 for shift in range(0, 32, 4)], -1).reshape(len(words), -1)
    return values * scales.repeat_interleave(values.shape[1] // scales.shape[1], 1)


def test_integers_of_4_bits(tmp_path: Path, capfd: Capture) -> None:
    """Groups of 32, which are no parts of the heads of the projection behind attention."""
    sizes = dict.fromkeys(("moe_intermediate_size", "q_lora_rank", "kv_lora_rank"), 32) | {"intermediate_size": 64}
    module = make_folder("deepseek_v3", tmp_path / "wide", **sizes)
    run(capfd, "quantize", tmp_path / "wide", "-o", tmp_path / "model", "--bits", "4", "--group", "32")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    names = {name.removesuffix("_packed") for name in stored if name.endswith("_packed")}
    wide = load_file(tmp_path / "wide" / "model.safetensors")
    save_file(
        {name: read_integers(stored, name) if name in names else tensor for name, tensor in wide.items()},
        tmp_path / "wide" / "model.safetensors",
        {"format": "pt"},
    )
    expected = continue_greedily(type(module).from_pretrained(tmp_path / "wide", dtype=torch.float32).eval())
    assert generate(capfd, tmp_path / "model", tmp_path / "plans") == [expected]
    assert find_text(tmp_path / "plans").count("as i4(group=32)") >= 14


def test_floats_of_4_bits(tmp_path: Path, capfd: Capture) -> None:
    """MXFP4, as gpt-oss has its experts, which are read as they are stored."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    module = make_folder("gpt_oss", tmp_path / "model", intermediate_size=64)
    file = tmp_path / "model" / "model.safetensors"
    stored, generator = load_file(file), torch.Generator().manual_seed(5)
    for name, parameter in module.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = parameter.shape
            shape = experts, rows, columns // 32
            blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
            exponents = torch.randint(123, 127, shape, dtype=torch.uint8, generator=generator)
            del stored[name]
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, exponents
            parameter.data.copy_(convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32))
    save_file(stored, file, {"format": "pt"})
    change_config(tmp_path / "model", {"quantization_config": {"quant_method": "mxfp4"}})
    assert generate(capfd, tmp_path / "model", tmp_path / "plans") == [continue_greedily(module)]
    text = find_text(tmp_path / "plans")
    assert text.count("as mxfp4(layout=") == 4
    assert "transpose" not in text


def test_a_server_answers_as_transformers_does(tmp_path: Path) -> None:
    module = make_folder("gpt_neox", tmp_path / "model")
    tokenizer = word_tokenizer(64)
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    expected = continue_greedily(module)
    with serving(tmp_path / "model", "--plans", tmp_path / "plans", "--context", 32) as server:
        request = {"model": server.model, "prompt": list(PROMPT), "max_tokens": NEW, "logprobs": 1}
        body = json.dumps(request | {"ignore_eos": True}).encode()
        with urllib.request.urlopen(f"{server.url}/completions", body, timeout=60) as answer:
            (choice,) = json.loads(answer.read())["choices"]
        assert server.end(signal.SIGTERM) == 0
    assert choice["text"].split() == tokenizer.decode(expected).split()
    ids = torch.tensor([[*PROMPT, *expected[:-1]]])
    with torch.no_grad():
        logits = module(input_ids=ids, use_cache=False).logits[0, len(PROMPT) - 1 :]
    wanted = logits.log_softmax(-1).max(-1).values
    assert torch.allclose(torch.tensor(choice["logprobs"]["token_logprobs"]), wanted, atol=1e-3)
