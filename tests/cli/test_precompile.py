"""`einc compile --precompile`: what is refused, what is written where, which kernels a plan has; no Triton needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from einc_runtime.errors import KernelFault
from einc_runtime.execution.cuda import precompile
from einc_runtime.kernels.cuda import kernel_cache, triton_compile
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.triton.launches import KernelSource
from einc_runtime.plan.codec import decode

FFN = "models/ffn.ein"


@pytest.fixture
def compiler(monkeypatch):
    """A compiler whose code is the source."""
    compiled = []

    def compile_source(source, architecture):
        compiled.append((source.name, architecture))
        return KernelBinary(source.name, source.text.encode(), source.warps, 0, "triton 9.9")

    monkeypatch.setattr(triton_compile, "compile_source", compile_source)
    monkeypatch.setattr(triton_compile, "version", lambda: "triton 9.9")
    monkeypatch.setattr(precompile, "_MAX_SERIAL", 10**6)  # in this process
    return compiled


@pytest.mark.parametrize("names", ["sm_70", "sm_90,a100", "", "90"])
def test_unknown_architectures(einc, names):
    result = einc("compile", FFN, "-o", "never.bin", "--precompile", names)
    assert result.code == 2
    assert "is not an architecture; there are sm_80" in result.err
    assert not Path("never.bin").exists()


def test_kernels_need_a_plan_beside_which_they_are(einc):
    for where in ((), ("-o", "-")):
        result = einc("compile", FFN, *where, "--emit", "graph", "--precompile", "sm_80")
        assert result.code == 2


def test_no_compiler_is_told_before_any_work(einc, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "triton", None)
    result = einc("compile", FFN, "-o", tmp_path / "ffn.bin", "--precompile", "sm_80")
    assert result.code == 69
    assert "Triton is not installed" in result.err
    assert not (tmp_path / "ffn.bin").exists()


def test_kernels_are_written_once_beside_the_plan(einc, compiler, tmp_path):
    plan = tmp_path / "ffn.bin"
    arguments = (
        "compile",
        FFN,
        "-m",
        "dgx-a100",
        "--devices",
        "4",
        "-o",
        plan,
        "--precompile",
        "sm_80,sm_90",
        "--json",
    )
    result = einc(*arguments)
    document = result.json()["kernels"]
    directory = Path(document["directory"])
    assert f"{directory}: {document['count']} kernels for sm_80, sm_90" in result.err
    assert directory == kernel_cache.directory_beside(plan)
    assert document["architectures"] == ["sm_80", "sm_90"]
    assert document["compiler"] == "triton 9.9"
    assert len(list(directory.glob("*.cubin"))) == len(compiler) == 2 * document["count"]
    assert len(list(directory.glob("*.py"))) == document["count"]
    compiler.clear()
    assert einc(*arguments).json()["kernels"] == document
    assert compiler == []  # all were there
    needed = precompile.list_sources(decode(plan.read_bytes()), "sm_90")
    assert all(kernel_cache.find(source, "sm_90", [directory], None) is not None for source in needed)


def test_one_kernel_that_cannot_be_compiled(compiler, tmp_path, monkeypatch):
    sources = [
        KernelSource(name, f"def {name}(x):\n    pass\n", ("f32",), (True,)) for name in ("one", "bad", "other", "last")
    ]
    good = triton_compile.compile_source

    def some(source, architecture):
        if source.name == "bad":
            raise KernelFault("Triton could not compile bad")
        return good(source, architecture)

    monkeypatch.setattr(triton_compile, "compile_source", some)
    jobs, failed = [(source, "sm_90") for source in sources], []
    with pytest.raises(KernelFault, match="compile bad"):
        precompile.compile_all(jobs, tmp_path / "strict")
    assert precompile.compile_all(jobs, tmp_path / "place", failed=failed) == 3
    assert [fault.message for fault in failed] == ["Triton could not compile bad"]
    assert precompile.compile_all(jobs, tmp_path / "place", failed=[]) == 0  # the others are there
    assert precompile.compile_all(jobs, tmp_path / "hurried", seconds=-1) == 1


def test_a_directory_that_cannot_be_written(einc, compiler, tmp_path):
    plan = tmp_path / "ffn.bin"
    kernel_cache.directory_beside(plan).write_text("in the way")
    result = einc("compile", FFN, "-o", plan, "--precompile", "sm_80")
    assert result.code == 73
    assert "cannot write kernels" in result.err
