"""PyTorch and JAX on several devices compute what PyTorch computes whole, here on the CPU: gloo and virtual devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.plan.codec import encode
from tests.bench.inputs import drawn
from tests.gpu.torch_models import reference
from tests.gpu.torch_ranks import BATCH, ROWS, SEQUENCE, run_alone, run_ranks, ways_of

ROOT = Path(__file__).resolve().parents[2]
BLOCK = (("d_model", "32"), ("heads_q", "4"), ("heads_kv", "2"), ("d_head", "8"), ("d_ff", "40"))
MODELS = {
    "two sequences": ("llama_block", (*BLOCK, ("seq_lens", "[12, 12]"))),
    "uneven": ("llama_block", (*BLOCK, ("seq_lens", "[8, 4, 12, 4]"))),
    "chain": ("chain_b", (("scale", "256"),)),
}


def bundle_of(name):
    model, definitions = MODELS[name]
    options = CompileOptions(machine="host", devices=1, definitions=definitions, dtype="f32", schedule="naive")
    return compile_model((ROOT / "models" / f"{model}.ein").read_text(), f"{model}.ein", options).bundle


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "how", "ranks"),
    [("two sequences", BATCH, 2), ("two sequences", SEQUENCE, 3), ("uneven", SEQUENCE, 2), ("chain", ROWS, 2)],
)
def test_ranks(name, how, ranks):
    bundle = bundle_of(name)
    assert how in ways_of(bundle, ranks)
    (expected,) = reference(bundle, drawn(bundle), "cpu").values()
    times, found = run_ranks(bundle, drawn, how, ranks, "cpu", (1, 3))
    assert len(times) == 3
    assert min(times) > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    _, alone = run_alone(bundle, drawn, "cpu", (0, 1))
    np.testing.assert_allclose(alone, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_what_cannot_be_cut():
    assert ways_of(bundle_of("uneven"), 3) == ()
    assert ways_of(bundle_of("uneven"), 4) == (BATCH, SEQUENCE)
    assert ways_of(bundle_of("chain"), 3) == ()
    with pytest.raises(ValueError, match="batch over 3"):
        run_ranks(bundle_of("uneven"), drawn, BATCH, 3, "cpu", (0, 1))


SHARDED = """
import sys
import numpy as np
from einc_runtime.plan.codec import read_bundle
from tests.bench.inputs import drawn
from tests.gpu.jax_models import prepared
plan, devices, result = sys.argv[1:]
bundle = read_bundle(plan)
call, version = prepared(bundle, drawn(bundle), "cpu", int(devices))
np.save(result, np.asarray(call()))
"""


@pytest.mark.parametrize(("name", "devices"), [("two sequences", 1), ("two sequences", 4), ("chain", 2)])
def test_jax(name, devices, tmp_path):
    pytest.importorskip("jax")
    bundle = bundle_of(name)
    (expected,) = reference(bundle, drawn(bundle), "cpu").values()
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    (tmp_path / "plan.bin").write_bytes(encode(bundle))
    command = [sys.executable, "-c", SHARDED, str(tmp_path / "plan.bin"), str(devices), str(tmp_path / "y.npy")]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | flags)
    found = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
