"""The page about the proof says what the commands print, no more and no less."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from einc.ops import registry
from einc_runtime.cli.main import main as runtime_main
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.meaning.operations import FAMILIES
from tests.mutation.plans import make_plan

PAGE = Path(__file__).parents[2] / "docs/proof.md"
MODEL = 'model m\ndim a = 8\ninput x : f32[a]\nweight w : f32[a]\noutput y = sum(x * w, "a")'


def sentences() -> set[str]:
    """What stands in bold letters, on one line each and without the full stop that may be at the end."""
    matches = re.findall(r"\*\*(.+?)\*\*", PAGE.read_text(encoding="utf-8"), re.S)
    return {" ".join(text.split()).removesuffix(".") for text in matches}


def test_the_page_has_the_sentences_of_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, einc: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("MODEL.ein").write_text(MODEL)
    np.savez("weights.npz", w=np.ones(8, "f4"))
    assert einc("compile", "MODEL.ein", "-m", "host", "--devices", "2", "-o", "p.bin").code == 0
    Path("once.bin").write_bytes(make_plan("once"))
    Path("bare.bin").write_bytes(encode(msgspec.structs.replace(decode(make_plan("once")), report=b"")))
    documents = [
        einc("verify", "p.bin", "--json").json(),
        einc("verify", "once.bin", "--json").json(),
        einc("verify", "bare.bin", "--json").json(),
        einc("verify", "p.bin", "--json", "--model", "MODEL.ein", "--weights", "weights.npz").json(),
    ]
    capfd.readouterr()
    assert runtime_main(["verify", "p.bin", "--json"]) == 0
    documents.append(json.loads(capfd.readouterr().out))
    printed = {line for document in documents for line in (*document["proved"], *document["unproved"])}
    assert printed == sentences()


def test_every_family_of_operators_has_a_description() -> None:
    assert set(FAMILIES) == set(registry.list_families())
