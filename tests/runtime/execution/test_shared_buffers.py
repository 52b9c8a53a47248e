"""Sessions of several plans over one memory: weights are there once, states are the same, results are as alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.generation.decoder_plans import make_pins
from einc.options import CompileOptions
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.plan.schema import Bundle
from tests.support.compiled_plans import MODELS

TEXT = (MODELS / "llama_decode.ein").read_text()


def compile_step(sites: int, length: int, pins: tuple = ()) -> Bundle:
    definitions = (("length", str(length)),)
    options = CompileOptions("host", sites, definitions, "tiny", "f32", "eindecomp", "naive", pins=pins)
    return compile_model(TEXT, "m.ein", options).bundle


@pytest.mark.parametrize("sites", [3])
def test_what_one_session_has_loaded_or_left_the_others_have(sites: int) -> None:
    one = compile_step(sites, 1)
    four = compile_step(sites, 4, make_pins(one))
    common = SharedBuffers(prepack=False)
    step, piece = (Session(bundle, "cpu", common=common) for bundle in (one, four))
    step.load_weights("rand:1")
    assert piece.shares_states(step)
    assert step.facts.cpu.memory_bytes.packed == 0
    found = {name for kind, name, *_ in common.arrays if kind == "weight"}
    assert found == {tensor.stored for tensor in one.tensors if tensor.kind == "weight"}
    piece.load_weights("rand:2", only_missing=True)  # nothing is missing but blocks that are cut otherwise
    weights = {t.stored: w for t, w in _read_weights(one)}
    alone = [Session(bundle, "cpu") for bundle in (one, four)]
    for session in alone:
        session.load_weights(weights)
    piece.load_weights(weights)
    ids = np.random.default_rng(0).integers(0, 97, (2, 5))
    places = np.arange(5)
    piece.run({"ids": ids[:, :4].ravel(), "positions": np.tile(places[:4], 2)})
    last = step.run({"ids": ids[:, 4], "positions": np.array([4, 4])})["logits"]
    for place in range(5):
        expected = alone[0].run({"ids": ids[:, place], "positions": np.full(2, place)})["logits"]
    np.testing.assert_allclose(last, expected, atol=1e-4)
    assert not alone[0].shares_states(alone[1])


def _read_weights(bundle: Bundle) -> list:
    from einc_runtime.execution.data.random_arrays import make_random_array

    return [(tensor, make_random_array(tensor, 1)) for tensor in bundle.tensors if tensor.kind == "weight"]


def test_a_session_without_its_weights_says_so(tmp_path: Path) -> None:
    one = compile_step(1, 1)
    session = Session(one, "cpu", common=SharedBuffers())
    with pytest.raises(ArrayFault, match="nothing is loaded for"):
        session.run({"ids": np.zeros(2, np.int64), "positions": np.zeros(2, np.int64)})
