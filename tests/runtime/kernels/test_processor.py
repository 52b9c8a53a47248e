"""Levels of instructions: which there are, what obeys them, and what is refused."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from einc_runtime.environment import PROCESSOR
from einc_runtime.errors import UsageFault
from einc_runtime.kernels import processor
from einc_runtime.kernels.processor import ARM_LEVELS, X86_LEVELS, Processor

ZEN_3 = processor._V3 | {"sse4a", "sha", "vaes"}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was read of the environment is read again, here and afterwards."""
    for cached in (processor.find_level, processor.find_processor):
        cached.cache_clear()
    yield
    for cached in (processor.find_level, processor.find_processor):
        cached.cache_clear()


@pytest.fixture
def without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(processor, "read_processor", lambda: Processor("znver3", ZEN_3))


def test_each_level_has_what_the_one_before_has() -> None:
    for levels in (X86_LEVELS, ARM_LEVELS):
        for lower, higher in itertools.pairwise(levels):
            assert lower.features < higher.features
            assert lower.onednn < higher.onednn or levels is ARM_LEVELS


def test_without_llvm_the_system_says_what_levels_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64" or not processor.CPUINFO.exists():
        pytest.skip("the system says nothing about an x86-64 processor")
    pytest.importorskip("llvmlite")
    by_llvm = processor.list_levels()
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    assert processor.list_levels() == by_llvm
    assert by_llvm


@pytest.mark.usefixtures("without_avx512")
def test_a_level_is_what_kernels_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROCESSOR, raising=False)
    assert processor.find_processor() == Processor("znver3", ZEN_3)
    seen = {}
    for level in processor.list_levels():
        processor.find_level.cache_clear()
        processor.find_processor.cache_clear()
        monkeypatch.setenv(PROCESSOR, level.name)
        found = processor.find_processor()
        seen[level.name] = (found.converts_f16, found.has_wide_registers, found.integer_products)
        assert processor.name_processor().endswith(f" as {level.name}")
    assert seen == {"x86-64-v2": (False, False, "words"), "x86-64-v3": (True, False, "pairs")}


SUMS = [(5, 16), (16, 16), (17, 8), (24, 8), (25, 16), (32, 16), (40, 8), (48, 16)]


@pytest.mark.parametrize(("sums", "lanes"), SUMS)
def test_halves_of_long_registers_are_chosen_where_they_cost_nothing(sums: int, lanes: int) -> None:
    """A processor computes with long registers in halves: 24 sums take three halves, and two whole ones take four."""
    features = frozenset({"avx512f", "avx2"})
    assert Processor("znver4", features).choose_registers(sums).lanes == lanes
    assert Processor("skylake-avx512", features).choose_registers(sums).lanes == 16
    assert Processor("znver4", frozenset({"avx2"})).choose_registers(sums) == (8, 16)


@pytest.mark.usefixtures("without_avx512")
@pytest.mark.parametrize(
    ("name", "told", "hint"),
    [
        ("x86-64-v4", "does not have all instructions of x86-64-v4", "x86-64-v2, x86-64-v3"),
        ("x86-64-v33", "there is no level of instructions 'x86-64-v33'", "did you mean 'x86-64-v3'"),
        ("\x1bavx", "there is no level of instructions", "leave it out"),
    ],
)
def test_a_level_that_cannot_be_had_is_refused(
    name: str, told: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROCESSOR, name)
    with pytest.raises(UsageFault) as caught:
        processor.find_processor()
    assert told in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.where == PROCESSOR
    assert "\x1b" not in caught.value.render()


def test_processors_of_arm_have_levels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neoverse N1 has half floats and products of bytes, and neither bf16 nor longer vectors."""
    words = {16: 0x101783, 26: 0x0}

    class System:
        def __init__(self, name: None) -> None:
            self.getauxval = lambda key: words[key]

    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr("ctypes.CDLL", System)
    features = processor.read_arm_features()
    monkeypatch.setattr(processor, "read_processor", lambda: Processor("neoverse-n1", features))
    assert [level.name for level in processor.list_levels()] == ["armv8-a", "armv8.2-a"]
    monkeypatch.setenv(PROCESSOR, "armv8.2-a")
    assert processor.find_processor().attributes == "+crc,+dotprod,+fp-armv8,+fullfp16,+lse,+neon,+rdm"
    assert processor.find_processor().integer_products == "signed"


def test_macos_says_what_a_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Apple M2 has what Armv8.6 has; an M1 has neither bf16 nor products of matrices."""
    missing = {b"arm.FEAT_BF16": 0, b"arm.FEAT_I8MM": 0}

    class System:
        def __init__(self, name: None) -> None: ...

        def sysctlbyname(self, name: bytes, answer: Any, size: Any, new: None, length: Any) -> int:
            assert name.startswith(b"hw.optional.")
            answer._obj.value = missing.get(name.removeprefix(b"hw.optional."), 1)
            return 0

    monkeypatch.setattr(processor.platform, "machine", lambda: "arm64")
    monkeypatch.setattr("ctypes.CDLL", System)
    monkeypatch.setattr(processor, "read_processor", lambda: Processor("apple-m1", processor.read_arm_features()))
    assert [level.name for level in processor.list_levels()] == ["armv8-a", "armv8.2-a"]
    missing.clear()
    assert [level.name for level in processor.list_levels()] == ["armv8-a", "armv8.2-a", "armv8.6-a"]


def test_other_processors_have_no_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    monkeypatch.setenv(PROCESSOR, "x86-64-v3")
    with pytest.raises(UsageFault, match="does not have") as caught:
        processor.find_level()
    assert "no level can be set on this processor" in (caught.value.hint or "")


def test_the_command_says_so(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "einc", "run", "m.bin", "--inputs", "rand:0"]
    model = "model m\ndim n = 4\ninput x : f32[n, n]\noutput y = relu(x)\n"
    (tmp_path / "m.ein").write_text(model)
    compiled = [sys.executable, "-m", "einc", "compile", "m.ein", "-o", "m.bin"]
    subprocess.run(compiled, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    environment = {**os.environ, PROCESSOR: "x86-64-v9"}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "EINC_PROCESSOR: there is no level of instructions 'x86-64-v9'" in done.stderr


def test_the_processor_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROCESSOR, raising=False)
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some   CPU \x1b @ 2 GHz\n\nmodel name\t: Other\n")
    monkeypatch.setattr(processor, "CPUINFO", info)
    assert processor.name_processor() == "Some CPU @ 2 GHz"
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "missing")
    assert processor.name_processor()
