"""Causal families of transformers at tiny sizes: logits on one and on three sites are those of transformers.

`data/torch_families.json` says of each family that it is equal, or why it is not tried; `-m slow` tries all.
`python -m tests.importers.live_families` tries families, or all, and writes down what became of them.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "data" / "torch_families.json"
FAMILIES: dict[str, str] = json.loads(TABLE.read_text())
EQUAL = sorted(family for family, result in FAMILIES.items() if result == "equal")
SOME = (
    "bloom",
    "deepseek_v3",
    "falcon_mamba",
    "gemma3_text",
    "gpt2",
    "gpt_oss",
    "llama",
    "mixtral",
    "opt",
    "qwen3_moe",
)
TOLERANCE = 1e-5


def hold(family: str) -> None:
    from tests.support.tiny_models import draw_ids, make_causal
    from tests.support.torch_models import compare

    compare(make_causal(family), (draw_ids(),), tolerance=TOLERANCE)


@pytest.mark.parametrize("family", [family for family in SOME if family in EQUAL])
def test_some_families(family: str) -> None:
    hold(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in EQUAL if family not in SOME])
def test_further_families(family: str) -> None:
    hold(family)


def describe(family: str) -> str:
    """`equal`, or what was wrong."""
    try:
        hold(family)
    except BaseException as error:
        text = str(error).strip() or type(error).__name__
        return f"{type(error).__name__}: {' '.join(text.split())[:200]}"
    return "equal"


def main() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    for family in sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                FAMILIES[family] = pool.apply_async(describe, (family,)).get(300)
            except multiprocessing.TimeoutError:
                FAMILIES[family] = "it takes more than 300 s"
        print(family, FAMILIES[family], flush=True)
        TABLE.write_text(json.dumps(dict(sorted(FAMILIES.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
