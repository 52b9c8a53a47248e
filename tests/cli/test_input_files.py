"""Texts are read as they are, or end in an error that says where."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.cli import files
from einc.errors import ModelError
from einc_runtime.errors import ReadFault, UsageFault


def test_an_endless_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 1 << 20)
    with pytest.raises(ReadFault, match="more than the 1 MiB"):
        files.read_text("/dev/zero")


@pytest.mark.parametrize(
    ("data", "line", "column", "byte", "hint"),
    [
        (b"dim n = 4\ninput \xff : f32[n]\n", 2, 7, "0xff", "save it as UTF-8"),
        (b"\xff\xfed\x00i\x00m\x00", 1, 1, "0xff", "the file looks like UTF-16; save it as UTF-8"),
        (b"dim n = 4 # caf\xe9", 1, 16, "0xe9", "save it as UTF-8"),
        ("# Gr\u00fc\u00dfe ".encode() + b"\xc3", 1, 9, "0xc3", "save it as UTF-8"),
    ],
)
def test_invalid_utf8_is_pointed_at(tmp_path: Path, data: bytes, line: int, column: int, byte: str, hint: str) -> None:
    path = tmp_path / "bytes.ein"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        files.read_text(str(path))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.span is not None
    assert diagnostic.message == f"the byte {byte} is no UTF-8 text"
    assert (diagnostic.span.line, diagnostic.span.column, diagnostic.hint) == (line, column, hint)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.ein", tmp_path / "a\0b", tmp_path / "missing" / "m.ein", tmp_path / ("n" * 5000)):
        with pytest.raises(UsageFault):
            files.read_text(str(path))
    with pytest.raises(ReadFault, match="directory"):
        files.read_text(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_a_read_error(tmp_path: Path) -> None:
    path = tmp_path / "secret.ein"
    path.write_text("model m")
    path.chmod(0)
    with pytest.raises(ReadFault):
        files.read_text(str(path))


@pytest.mark.parametrize(
    ("name", "data", "plan"),
    [
        ("m.ein", b"\x89EINC", False),
        ("m.txt", b"model m", False),
        ("m.txt", b"#" * 511 + "\u00e9".encode(), False),  # half a letter at the end of what is looked at
        ("m.bin", b"#" * 300 + b"\xe9" + b"#" * 300, True),
        ("m.bin", b"\x89EINC\r\n", True),
        ("m.txt", b"m\xc3", False),
        ("m.bin", b"\xc3", True),
        ("m.bin", b"model\0", True),
        ("m.bin", b"", True),
    ],
)
def test_plans_are_told_from_models(tmp_path: Path, name: str, data: bytes, plan: bool) -> None:
    (tmp_path / name).write_bytes(data)
    assert files.is_plan(str(tmp_path / name)) is plan


@pytest.mark.parametrize(
    ("name", "way_in"),
    [("net.py", "einc.compile(module"), ("net.onnx", "einc import onnx"), ("net.pt2", "einc import torch"),
     ("net.gguf", "einc import gguf"), ("config.json", "einc import hf")],
)  # fmt: skip
def test_files_of_other_formats_are_shown_the_way_in(
    name: str, way_in: str, einc: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / name).write_text("import torch\n")
    result = einc("compile", str(tmp_path / name), "-m", "dgx-a100", "-o", str(tmp_path / "x.bin"))
    assert result.code == 65
    assert way_in in result.err
    assert len(result.err.splitlines()) == 2
