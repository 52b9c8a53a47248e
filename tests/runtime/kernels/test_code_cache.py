"""Machine code is kept from one process to the next, and compiled again wherever the file is not as it was written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from einc_runtime.kernels.base import address
from einc_runtime.kernels.llvm import code_cache, compiler

pytestmark = pytest.mark.skipif(not compiler.is_available(), reason="llvmlite is not installed")


@pytest.fixture
def process(monkeypatch, tmp_path):
    """Starts what a new process starts with; returns what code makes of a number, and how often it was emitted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    emitted = []

    def emit(added):
        from einc_runtime.kernels.llvm.emitter import I64, Emitter

        emitted.append(added)
        e = Emitter()
        place = e.b.inttoptr(e.argument(), I64.as_pointer())
        e.b.store(e.b.add(e.argument(), I64(added)), place)
        return e.finish()

    def run(number, added=1, emitter="test"):
        emitted.clear()
        engine = compiler._LlvmEngine()
        function = engine.load(lambda: emit(added), emitter, ((added,),))
        found = np.zeros(1, np.int64)
        arguments = np.array([address(found), number], np.int64)
        function(address(arguments))
        return int(found[0]), len(emitted)

    return run


def files():
    return list((Path(os.environ["XDG_CACHE_HOME"]) / "einc" / "code").iterdir())


def test_code_is_emitted_once_for_its_arguments_and_its_emitter(process, monkeypatch):
    assert process(41) == (42, 1)
    assert process(6) == (7, 0)
    assert process(41, added=3) == (44, 1)
    assert process(41, emitter="another") == (42, 1)
    assert process(41, added=3) == (44, 0)
    assert len(files()) == 3
    monkeypatch.setattr(code_cache, "_hash_emitters", lambda: b"other sources")
    assert process(41) == (42, 1)


def test_code_that_is_damaged_or_may_be_of_others_is_compiled_again(process):
    process(1)
    (path,) = files()
    code = path.read_bytes()
    for damaged in (b"", code[:-1], code + b"\0", bytes([code[0] ^ 1]) + code[1:], code[:99] + b"\x90" + code[100:]):
        path.write_bytes(damaged)
        assert process(1) == (2, 1)
        assert path.read_bytes() == code
    path.chmod(0o666)
    assert process(1) == (2, 1)
    path.parent.chmod(0o777)
    assert process(1) == (2, 1)


def test_no_folder_and_arguments_without_a_description_only_cost_time(process, monkeypatch):
    assert code_cache.name_code("e", (object(),), "m") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert process(2) == (3, 1)
    assert process(2) == (3, 1)


def test_older_code_is_forgotten(process, monkeypatch):
    monkeypatch.setattr(code_cache, "MAX_FILES", 4)
    for number in range(12):
        code_cache.remember(f"{number:064}", b"code")
    assert 2 <= len(files()) <= 4
    assert code_cache.recall(f"{11:064}") == b"code"
