"""Encoders, encoder-decoders and vision models of transformers at tiny sizes: results on one and three sites are its.

`data/torch_architectures.json` has the result of each; `-m slow` tries all that are equal. `python -m
tests.importers.live_architectures` tries architectures, or all, and writes down what became of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import einc
from einc.cli.main import main
from einc_runtime import Session
from tests.support.tiny_architectures import ENCODER_DECODERS, ENCODERS, PICTURES, make_model
from tests.support.tiny_models import draw_ids
from tests.support.torch_models import check_result, compare
from tests.support.trials import Check, Table, fill_table, list_equal

TABLE = Path(__file__).parent / "data" / "torch_architectures.json"
RESULTS: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
TOLERANCE = 2e-5

SOME = ("clip", "convnext", "modernbert", "resnet", "t5", "vit", "whisper", "xlm-roberta")


def hold_results(kind: str) -> None:
    module, inputs = make_model(kind)
    compare(module, inputs, tolerance=TOLERANCE)


CHECKS: dict[str, Check] = {"results": hold_results}
EQUAL = list_equal(RESULTS, "results")


@pytest.mark.parametrize("kind", [kind for kind in EQUAL if kind in SOME])
def test_some_architectures(kind: str) -> None:
    hold_results(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in EQUAL if kind not in SOME])
def test_further_architectures(kind: str) -> None:
    hold_results(kind)


NAMES = {
    "input_ids": "ids", "attention_mask": "mask", "decoder_input_ids": "decoder_ids", "pixel_values": "pixels",
    "input_features": "features",
}  # fmt: skip
"""What a text that is imported from a folder calls the arguments of a model."""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, ()) for kind in ("clip", "convnext", "modernbert", "resnet", "t5", "vit", "whisper")),
        ("nomic_bert", ("--pool", "cls")), ("xlm-roberta", ("--pool", "mean", "--normalize")),
    ],
)  # fmt: skip
def test_folders_are_imported(kind: str, options: tuple[str, ...], tmp_path: Path) -> None:
    module, tensors = make_model(kind)
    inputs = dict(zip(module.names, tensors, strict=True))
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = draw_ids()
    module.model.save_pretrained(tmp_path / "model")
    text = tmp_path / f"{kind}.ein"
    arguments = ["import", "hf", str(tmp_path / "model"), "-o", str(text), "--batch", "2", "--tokens", "7", *options]
    assert main(arguments) == 0
    plan = einc.compile(str(text), "host", 3)
    feeds = {NAMES[name]: tensor.numpy() for name, tensor in inputs.items()}
    if "mask" in feeds:
        feeds["mask"] = feeds["mask"].astype(bool)
    with Session(plan.bundle, backend="cpu") as session, torch.no_grad():
        constants = text.with_suffix(".constants.safetensors")
        session.load_weights([str(tmp_path / "model"), *([str(constants)] if constants.exists() else [])])
        results = session.run({tensor.name: feeds[tensor.name] for tensor in session.inputs})
        expected = dict(module.model(**inputs))
    if options:
        hidden, seen = expected["last_hidden_state"], inputs["attention_mask"][..., None]
        vectors = hidden[:, 0] if "cls" in options else (hidden * seen).sum(1) / seen.sum(1)
        expected["embedding"] = torch.nn.functional.normalize(vectors) if "--normalize" in options else vectors
    assert results
    for name, result in results.items():
        check_result(torch.from_numpy(np.array(result)), expected[name], TOLERANCE, name)


if __name__ == "__main__":
    fill_table(TABLE, sys.argv[1:] or (*ENCODERS, *ENCODER_DECODERS, *PICTURES), CHECKS)
