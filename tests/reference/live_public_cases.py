"""Public reports of folders, tokenizers and templates: results are those of transformers, or there is one clear error.

The cases are in `tests/importers/data/public_cases.json`, each with its report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from einc.cli.main import main
from einc_runtime.errors import ArrayFault
from einc_runtime.generation.chat import ChatRenderer
from einc_runtime.generation.model_folder import ModelFolder
from einc_runtime.generation.text_stream import TextStream
from tests.support import reference_models, reference_plans
from tests.support.public_cases import list_cases, write_tokenizer

FAMILIES = {
    "llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma",
}  # fmt: skip
SIZES = {**reference_models.SMALL, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
IDS = np.random.default_rng(3).integers(0, SIZES["vocab_size"], (2, 9))


def write_weights(folder: Path, config: dict[str, Any]) -> None:
    """The configuration as it is, and random weights that fit it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.dim() == 1))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))


def make_config(family: str, changes: dict[str, Any]) -> dict[str, Any]:
    names = {"architectures": [f"{FAMILIES[family]}ForCausalLM"], "model_type": family, "torch_dtype": "float32"}
    return {**SIZES, **names, **changes}


def compare_logits(folder: Path, work: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    found = reference_plans.all_logits(folder, work, 3, IDS)
    assert np.abs(found - reference_models.logits(model.eval(), input_ids=IDS)).max() < 1e-4


def require_refusal(folder: Path, work: Path, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["generate", str(folder), "1,2", "--ids", "--plans", str(work / "plans")]) in (2, 65, 66)
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("case", list_cases("configuration"))
def test_a_configuration(case: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    write_weights(folder, make_config(case["family"], case["changes"]))
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if name not in case.get("without", [])}
    save_file(kept, file, {"format": "pt"})
    if case["expect"] == "equal":
        compare_logits(folder, tmp_path)
    else:
        require_refusal(folder, tmp_path, case["expect"], capfd)


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], names: list[str]) -> dict[str, str]:
    """Shards of these names, and the index of them."""
    parts = {name: file for tensor_names, file in zip(np.array_split(sorted(tensors), len(names)), names, strict=True)
             for name in map(str, tensor_names)}  # fmt: skip
    for file in names:
        save_file({n: t for n, t in tensors.items() if parts[n] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    return parts


@pytest.mark.parametrize("case", list_cases("files"))
def test_files_of_weights(case: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, layout = tmp_path / "model", case["layout"]
    write_weights(folder, make_config("llama", {}))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    counts = {"one shard": 1, "stale index": 4}
    count = counts.get(layout, 2)
    names = [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    write_shards(folder, tensors, names)
    if layout == "single beside shards":
        save_file(
            {name: tensor * 2 for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
        )
    elif layout == "missing shard":
        (folder / names[1]).unlink()
    elif layout == "stale index":
        for file in names:
            (folder / file).unlink()
        save_file(tensors, folder / "model-00001-of-00002.safetensors", {"format": "pt"})
    elif layout == "extra file":
        save_file({"projector.weight": torch.ones(2, 2)}, folder / "projector.safetensors", {"format": "pt"})
    if case["expect"] == "equal":
        compare_logits(folder, tmp_path)
        return
    with pytest.raises(OSError, match="safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    require_refusal(folder, tmp_path, case["expect"], capfd)


def write_settings(folder: Path, case: dict[str, Any], kind: str = "bytes") -> Any:
    """The files about text, and the tokenizer that transformers makes of them."""
    write_tokenizer(kind, folder)
    templates = case.get("templates")
    stated = case.get("older") or (
        [{"name": name, "template": text} for name, text in templates.items()] if templates else case.get("template")
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **case.get("settings", {})}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, **({"chat_template": stated} if stated else {})})
    )
    if "older" in case:
        (folder / "chat_template.jinja").write_text(case["template"])
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("case", list_cases("tokens"))
def test_tokens_and_their_texts(case: dict[str, Any], tmp_path: Path) -> None:
    known = write_settings(tmp_path, case, case["tokenizer"])
    folder = ModelFolder(str(tmp_path))
    tokenizer = folder.read_tokenizer()
    rows = [known.encode(text) for text in case.get("texts", [])] + ([case["ids"]] if "ids" in case else [])
    for text, row in zip(case.get("texts", []), rows, strict=False):
        assert tokenizer.encode(text) == row
    for row in rows:
        expected = known.decode(row, skip_special_tokens=True)
        assert tokenizer.decode(row) == expected
        stream = TextStream(tokenizer)
        assert "".join([*map(stream.push, row), stream.finish()]) == expected
    if "messages" in case:
        template = folder.read_chat_template()
        with ChatRenderer() as chat:
            written = chat.render(template.text, case["messages"], template.variables, template.file)
        found = tokenizer.encode(written, special=False)
        assert found == list(known.apply_chat_template(case["messages"], tokenize=True, return_dict=False))


@pytest.mark.parametrize("case", list_cases("template"))
def test_a_template(case: dict[str, Any], tmp_path: Path) -> None:
    known = write_settings(tmp_path, case)
    tools = case.get("tools")
    template = ModelFolder(str(tmp_path)).read_chat_template()
    with ChatRenderer() as chat:

        def render() -> str:
            variables = {**template.variables, **({"tools": tools} if tools else {})}
            return chat.render(template.choose(variables), case["messages"], variables, template.file)

        if case["expect"] == "equal":
            assert render() == known.apply_chat_template(case["messages"], tools=tools, tokenize=False)
            return
        with pytest.raises(ArrayFault, match=case["expect"]):
            render()
        with pytest.raises(Exception, match=r"."):
            known.apply_chat_template(case["messages"], tools=tools, tokenize=False)
