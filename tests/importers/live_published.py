"""Folders of tiny models of families that transformers builds: `einc generate` makes its greedy tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from einc.cli.main import main
from tests.support.tiny_models import make_causal

FAMILIES = ("bloom", "falcon", "gpt2", "gpt_neox", "mamba", "olmo2", "olmoe", "opt", "phi")
PROMPT, NEW = (5, 17, 33, 9, 21), 12
SPREAD = 8.0
"""Weights of fresh models are so small that all tokens are alike; with larger ones they differ."""


def make_folder(family: str, folder: Path) -> torch.nn.Module:
    module = make_causal(family).model
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(SPREAD)
    module.save_pretrained(folder)
    return module


def continue_greedily(module: torch.nn.Module) -> list[int]:
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        for _ in range(NEW):
            logits = module(input_ids=ids, use_cache=False).logits[0, -1]
            ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    tokens: list[int] = ids[0, len(PROMPT) :].tolist()
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
    expected = continue_greedily(make_folder(family, tmp_path / "model"))
    assert len(set(expected)) > 1 or family == "bloom"
    assert generate(capfd, tmp_path / "model", tmp_path / "plans") == [expected]


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
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights .* are not supported"),
        ({"n_positions": 2**40}, "more memory|not enough memory|can't allocate|GiB"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(change: dict[str, Any], problem: str, tmp_path: Path, capfd: Capture) -> None:
    make_folder("gpt2", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert main(["import", "hf", str(tmp_path / "model"), "-o", str(tmp_path / "m.ein")]) == 65
    assert re.search(problem, capfd.readouterr().err)
    assert not (tmp_path / "m.ein").exists()
