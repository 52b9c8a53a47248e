"""Commands under a limit of address space end with the exit code for missing memory, or do their work."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.address_space import require_address_space
from einc_runtime.plan.codec import encode

ROOT = Path(__file__).parents[2]
RUN = ("run", "ffn.bin", "--inputs", "rand:0", "--weights", "rand:1", "-o", "y.npy")
VERIFY = ("verify", "ffn.bin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limited")
    definitions = (("tokens", "200"), ("d_model", "512"), ("d_ff", "700"))
    options = CompileOptions("host", 2, definitions, selector="eindecomp", time_limit=3.0)
    bundle = compile_model((ROOT / "models" / "ffn.ein").read_text(), "ffn.ein", options).bundle
    (folder / "ffn.bin").write_bytes(encode(bundle))
    return folder


def run(folder, arguments, mebibytes):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))

    call = [sys.executable, str(ROOT / "scripts" / "einc"), *arguments]
    done = subprocess.run(call, cwd=folder, preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("arguments", "mebibytes"), [(RUN, 350), (VERIFY, 130)])
def test_a_limit_that_is_too_low_is_told(folder, arguments, mebibytes):
    code, told = run(folder, arguments, mebibytes)
    assert (code, told.splitlines()[-1]) == (69, "einc: this needs more memory than there is")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [RUN, VERIFY, ("explain", "ffn.bin"), ("describe", "ffn.bin")])
def test_no_limit_ends_a_command_otherwise(folder, arguments):
    codes = {mebibytes: run(folder, arguments, mebibytes)[0] for mebibytes in range(60, 1200, 60)}
    assert set(codes.values()) == {0, 69}, codes
    assert codes[60] == 69


def test_without_a_limit_nothing_is_asked():
    require_address_space(1 << 62)
