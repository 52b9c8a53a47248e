"""Families that transformers builds: what is asked of it, and what of its answers becomes a text. Nothing is built here
(`live_published.py` does it)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einc.advising import workloads
from einc.errors import EincError, ModelError
from einc.generation.decoder_plans import DecoderSource
from einc.generation.plan_cache import PlanCache
from einc.graph.decode_step import StepRequest
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.program import ArrayProgram
from einc.importers.common import ImportRequest
from einc.importers.config import ConfigFields
from einc.importers.hf import ImportedModel, find_exported_family, import_hf
from einc.importers.pytorch import published
from einc.importers.pytorch.archive import ExportArchive
from einc.importers.pytorch.build_published import clean
from einc.importers.pytorch.convert import TextNames, convert_archive
from einc.importers.pytorch.stored_weights import ExportedWeights
from einc.importers.quantization import read_exported
from einc_runtime.errors import MissingFault
from tests.support.torch_archives import list_entries, load_case, write_archive

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 2}


def test_which_families_are_built() -> None:
    assert find_exported_family(GPT2) == "gpt2"
    assert find_exported_family({"model_type": "bloom"}) == "bloom"
    for other in (
        {"model_type": "llama"},
        {"model_type": "gpt2", "architectures": ["GPT2Model"]},
        {"model_type": "no"},
    ):
        assert find_exported_family(other) is None


def test_without_its_packages_one_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "find_spec", lambda name: None if name == "torch" else find_spec("json"))
    with pytest.raises(MissingFault, match="models of gpt2 need torch and transformers") as raised:
        import_hf(json.dumps(GPT2).encode(), "config.json", "m", ImportRequest(), None)
    assert "torch" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("request_", "further", "problem"),
    [
        (ImportRequest(caches=True), {}, "--caches means nothing"),
        (ImportRequest(batch=3), {}, "its text reads one sequence"),
        (ImportRequest(pool="mean"), {}, "means nothing for a GPT2LMHeadModel"),
        (ImportRequest(), {"quantization_config": {}}, "quant_method is missing"),
    ],
)
def test_what_is_not_there_for_them(request_: ImportRequest, further: dict[str, Any], problem: str) -> None:
    with pytest.raises(EincError, match=problem):
        import_hf(json.dumps(GPT2 | further).encode(), "config.json", "m", request_, None)


def test_advice_plans_steps_of_one_text_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[ImportRequest] = []

    def write(config: bytes, where: str, name: str, request: ImportRequest, stored: None) -> ImportedModel:
        requests.append(request)
        return ImportedModel("GPT2LMHeadModel", "model m", ())

    monkeypatch.setattr(workloads, "import_hf", write)
    workload = workloads.read_folder_workload("m", (json.dumps(GPT2).encode(), "c"), None, (1,), (8, 5), ())
    token, prompt = workload.plan_round(6, 2).phases
    assert requests == [ImportRequest(tokens=13)]
    assert (token.runs, token.step, token.definitions) == (4, StepRequest("tokens", 1, 6), (("sequences", "6"),))
    assert (prompt.runs, prompt.step, prompt.definitions) == (3, StepRequest("tokens", 8, 2), (("sequences", "2"),))


def test_fields_that_name_code_are_left_out() -> None:
    config = {"n": 1, "auto_map": {"AutoModel": "evil.Model"}, "text_config": {"_attn_implementation": "some/kernel"}}
    assert clean(config) == {"n": 1, "text_config": {}}


def test_tensors_that_are_stacked_and_joined_have_one_name() -> None:
    def name(sources: dict[str, Any], missing: list[str]) -> dict[str, str]:
        return published._name_weights({"weights": sources, "missing": missing}, "config.json")

    experts = [f"layers.3.experts.{number}.up.weight" for number in (10, *range(10))]
    gates = [name_.replace("up", "gate") for name_ in reversed(experts)]
    stack = {"operations": [["MergeModulelist", 0]], "names": {"experts.*.up.weight": experts}}
    both = {
        "operations": [["MergeModulelist", 0], ["Concatenate", 1]],
        "names": {"experts.*.gate.weight": gates, "experts.*.up.weight": experts},
    }
    joined = {"operations": [["Concatenate", 0]], "names": {"q": ["a.q.bias"], "k": ["a.k.bias"]}}
    assert name({"up": stack, "x": "y", "both": both, "qk": joined}, []) == {
        "up": "layers.3.experts.*.up.weight", "x": "y", "both": "layers.3.experts.*.(gate|up).weight",
        "qk": "a.(q|k).bias",
    }  # fmt: skip
    assert published._name_parts(both | {"operations": [["MergeModulelist", 0], ["Concatenate", 2]]}) is None
    merged = {"operations": [["Chunk", 0]], "names": {"qkv": ["a.qkv"]}}
    with pytest.raises(ModelError) as raised:
        name({"q": merged}, ["lm_head.weight"])
    assert [diagnostic.message for diagnostic in raised.value.diagnostics] == [
        "config.json: the weight files beside it have no 'lm_head.weight'",
        "config.json: 'q' is made of qkv in a way that is not supported",
    ]


def test_names_of_a_text_are_those_that_are_asked_for(tmp_path: Path) -> None:
    case, path = load_case("transformer"), tmp_path / "model.pt2"
    write_archive(path, list_entries(case.documents))
    with ExportArchive(str(path)) as archive:
        plain = convert_archive(archive, "case")
        weights = {name: f"files.{name}" for name in plain.stored}
        extent = case.inputs[0].shape[1]
        named = convert_archive(archive, "case", TextNames(weights, ("logits",), {extent: "tokens"}))
    assert named.outputs == ("logits",)
    assert set(named.stored) == set(weights.values())
    assert f"dim tokens = {extent}" in named.text
    assert f"n{extent}" not in named.text


def test_files_say_which_weights_stay_as_they_are_stored() -> None:
    def store(document: dict[str, Any], *names: str) -> ExportedWeights:
        fields = ConfigFields({"quantization_config": document}, "config.json", ())
        return ExportedWeights(read_exported(fields), frozenset(names))

    blocks = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    fp8 = store(blocks, "a.experts.0.gate.weight_scale_inv", "a.o.weight_scale_inv")
    storage = ' as f8e4m3(group=128, layout="blocks")'
    assert fp8.format_storage("a.experts.*.(gate|up).weight", (4, 96, 256), 2) == storage
    assert fp8.format_storage("a.o.weight[8:16]", (8, 3, 128), 1) == storage
    assert fp8.format_storage("a.o.weight", (8, 3, 64), 1) == ""  # a block is no part of a row's part
    assert fp8.format_storage("a.norm.weight", (256,), 0) == fp8.format_storage("a.q.weight", (4, 128), 1) == ""
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    rows = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"a": {"weights": weights}},
    }
    assert store(rows, "a.o.weight_scale").format_storage("a.o.weight", (8, 3, 64), 1) == " as f8e4m3(channels=1)"
    whole = rows | {"config_groups": {"a": {"weights": weights | {"strategy": "tensor"}}}}
    tensors = store(whole, "a.0.gate.weight_scale")
    assert tensors.format_storage("a.*.gate.weight", (4, 96, 256), 2) == " as f8e4m3(channels=1)"
    assert tensors.format_storage("a.*.(gate|up).weight", (4, 96, 256), 2) == ""
    integers = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
    packed = rows | {"format": "pack-quantized", "config_groups": {"a": {"weights": integers, "targets": ["Linear"]}}}
    words = store(packed, "a.o.weight_packed", "a.o.weight_scale")
    assert "a.o.weight" in (words.list_names() or ())
    program = ArrayProgram("m", None, words.format_storage)
    weight = program.weight("w", make_shape(8, 192), ElementType.BF16, "a.o.weight")
    assert program.divide_weight(weight, 0, None, make_shape(3, 64), 1) is not None
    assert program.divide_weight(weight, 0, None, make_shape(6, 32), 1) is None  # a group is no part of a row's part
    groups = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    nvfp4 = packed | {"format": "nvfp4-pack-quantized", "config_groups": {"a": {"weights": groups}}}
    fields = ConfigFields({"quantization_config": nvfp4}, "config.json", ())
    read_exported(fields)
    with pytest.raises(ModelError, match="nvfp4 is not supported for this family"):
        fields.check()
    pairs, program = store({"quant_method": "mxfp4"}, "e.up_blocks"), ArrayProgram("m")
    found = [pairs.declare(program, name, make_shape(4, 64, 96), ElementType.BF16) for name in ("e.up", "e.down")]
    assert [program.is_weight(array) for array in found] == [False, True]
    assert {tuple(extent.value for extent in array.shape) for array in found} == {(4, 64, 96)}


def make_shape(*extents: int) -> tuple[Extent, ...]:
    return tuple(map(make_extent, extents))


class _Slow(DecoderSource):
    """A source whose models are made here."""

    def write_model(self, places: int) -> ImportedModel:
        table = np.arange(6, dtype=np.float32).reshape(2, 3)
        return ImportedModel("GPT2LMHeadModel", f"model m{places}", ("a note",), 9, {"table": table})

    def find_longest(self) -> int:
        return 9


def test_imports_are_kept(tmp_path: Path) -> None:
    source = _Slow(json.dumps(GPT2).encode(), "config.json", "m", frozenset({"a"}))
    imports = [PlanCache(tmp_path).get_model(source, 8) for _ in range(2)]
    assert imports[0].text == imports[1].text
    np.testing.assert_array_equal(imports[0].constants["table"], imports[1].constants["table"])
    assert len(list(tmp_path.glob("*.json"))) == 1
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    assert PlanCache(tmp_path).get_model(source, 8).longest == PlanCache(tmp_path).find_longest(source) == 9
