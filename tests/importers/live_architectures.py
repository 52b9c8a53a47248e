"""Encoders, encoder-decoders and vision models of transformers at tiny sizes: results on one and three sites are its.

`data/torch_architectures.json` has the result of each; `-m slow` tries all that are equal. `python -m
tests.importers.live_architectures` tries architectures, or all, and writes down what became of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.tiny_architectures import ENCODER_DECODERS, ENCODERS, PICTURES, make_model
from tests.support.torch_models import compare
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


if __name__ == "__main__":
    fill_table(TABLE, sys.argv[1:] or (*ENCODERS, *ENCODER_DECODERS, *PICTURES), CHECKS)
