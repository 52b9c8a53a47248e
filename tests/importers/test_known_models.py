"""Well-known models by name: their configurations have the parameters that their makers' files have."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from einc.cli.main import main
from einc.cli.model_folders import find_model_folder, list_known_models
from einc.frontend import build
from einc.graph.graph import TensorKind

PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama-3.3-70b": 70_553_706_496,
    "qwen3-4b": 4_022_468_096,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "mixtral-8x22b-v0.1": 140_620_634_112,
    "mistral-small-24b": 23_572_403_200,
    "phi-4": 14_659_507_200,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
}
"""What the safetensors files of these models hold, as their pages at the hub say."""

NEED_TRANSFORMERS = {"gpt-oss-20b", "gpt-oss-120b"}
"""Models that transformers builds. In bf16, the smaller one has 20,914,757,184 parameters, as its page says."""


def test_every_known_model_is_counted() -> None:
    assert set(list_known_models()) == set(PARAMETERS) | NEED_TRANSFORMERS


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_known_model_has_the_parameters_of_the_published_one(name: str, tmp_path: Path) -> None:
    assert main(["import", "hf", name, "-o", str(tmp_path / "model.ein")]) == 0
    graph = build((tmp_path / "model.ein").read_text(), "model.ein")
    weights = [tensor.desc for tensor in graph.tensors if tensor.kind is TensorKind.WEIGHT]
    assert sum(math.prod(desc.shape) for desc in weights) == PARAMETERS[name]


def test_hubs_names_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(list_known_models()["llama-3.1-70b"])
    for path in ("llama-3.1-70b", "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct"):
        assert find_model_folder(path) == folder
    Path("qwen3-8b").mkdir()
    assert find_model_folder("qwen3-8b") == "qwen3-8b"


def test_a_copy_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["models", "copy", "mixtral-8x7b"]) == 0
    assert json.loads(Path("mixtral-8x7b/config.json").read_text())["num_local_experts"] == 8


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compile", "ffn"], "`einc models copy ffn`"),
        (["check", "ffn.ein"], "`einc models copy ffn`"),
        (["compile", "qwen3-8b"], "`einc import hf qwen3-8b"),
        (["advise", "qwen3-8c"], "did you mean 'qwen3-8b'"),
        (["advise", "Llama3.3"], "well-known models have names: 'llama-3.3-70b'\n"),
        (["import", "hf", "qwen3-8c", "-o", "m.ein"], "did you mean 'qwen3-8b'"),
    ],
)
def test_names_without_a_file_are_explained(
    arguments: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert hint in capsys.readouterr().err
