"""Reading texts of models and exchange programs, and telling them from plans."""

from __future__ import annotations

import codecs
import os
import sys

from einc.errors import Diagnostic, ModelError, SourceSpan, UsageError
from einc_runtime.cli import output
from einc_runtime.cli.files import STDIN, reading, require_present
from einc_runtime.errors import ReadFault

MAX_TEXT_BYTES = 64 * 2**20
"""The most bytes read of a model or exchange program; larger ones are refused."""


_WAYS_IN = {
    ".py": ("a Python program", "in Python, `einc.compile(module, machine, args=...)` plans a module of PyTorch, and "
            "`einc.from_torch(module, args).write(DIR)` writes it as a model"),
    ".onnx": ("an ONNX file", "`einc import onnx FILE -o DIR` makes a model of it"),
    ".pt2": ("a program of torch.export", "`einc import torch FILE -o DIR` makes a model of it"),
    ".pt": ("a file of PyTorch", "save the module by `torch.export.save`, and `einc import torch FILE -o DIR`"),
    ".pth": ("a file of PyTorch", "save the module by `torch.export.save`, and `einc import torch FILE -o DIR`"),
    ".gguf": ("a GGUF file", "`einc import gguf FILE -o MODEL.ein` makes a model of it"),
    ".safetensors": ("a file of weights", "`einc import hf DIR -o MODEL.ein` makes a model of a published folder"),
    ".exprog": ("an exchange program", "`einc exprog check FILE` and `einc exprog simulate FILE -m MACHINE` read it"),
    ".json": ("a JSON file", "`einc import hf DIR -o MODEL.ein` makes a model of a published folder"),
}  # fmt: skip
"""What is given in place of a text, by the ending of its name: what it is, and what to do."""


_PAGE_START = b"<!doctype html"


def require_page(path: str | None) -> None:
    """Raises UsageFault where a page would replace a file that is none. `path` is None where no page is asked for."""
    output.require_kind(path, _PAGE_START, "a page")


def require_plan(path: str | None) -> None:
    """Raises UsageFault where a plan would replace a file that is none."""
    from einc_runtime.plan.codec import MAGIC

    output.require_kind(path, MAGIC, "a plan")


def read_model_text(path: str) -> str:
    """The text of a model. Files of other formats are known by their names, and the error says what makes models of
    them."""
    meant = _WAYS_IN.get(os.path.splitext(path)[1].lower())
    if meant is not None and os.path.exists(path):
        file_kind, way_in = meant
        raise ModelError([Diagnostic(f"{path}: this is {file_kind}, and no text of a model", hint=way_in)])
    if path != STDIN and not os.path.lexists(path):
        raise UsageError("there is no such file", where=path or "''", hint=_suggest_copy(path))
    return read_text(path)


def _suggest_copy(path: str) -> str | None:
    """How to get a file of a model that comes with einc, where a path is its name."""
    from einc.cli.commands.models import find_models

    name = os.path.basename(path).removesuffix(".ein")
    model = find_models().get(name)
    if model is None:
        return None
    if model.is_dir():
        return f"`einc import hf {name} -o {name}.ein` makes a model of this published one"
    return f"`einc models copy {name}` writes this model into {model.name}"


def read_text(path: str) -> str:
    """A model or program text; UTF-8, with its line ends as they are."""
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError([_explain_encoding(path, data, error.start)]) from None


def read_bytes(path: str, most: int) -> bytes:
    """The bytes of a file, of which there may be `most`."""
    require_present(path)
    with reading(path), sys.stdin.buffer if path == STDIN else open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ReadFault(f"cannot read: it holds more than the {most // 2**20} MiB that einc reads", where=path)
    return data


def is_plan(path: str) -> bool:
    """Whether a file is a plan rather than a model. A model has a name that ends in .ein, or it begins with text."""
    if path == STDIN or path.endswith(".ein"):
        return path == STDIN
    require_present(path)
    with reading(path), open(path, "rb") as file:
        start = file.read(512)
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start < max(1, len(start) - 3)  # a character may be cut off at the end
    return not start or b"\0" in start


def _explain_encoding(path: str, data: bytes, at: int) -> Diagnostic:
    """Why the bytes of a file are no UTF-8 text; the first wrong one is at offset `at`."""
    from einc_runtime.plan.codec import MAGIC

    if data.startswith(MAGIC):
        hint = "`einc explain`, `einc run`, `einc verify` and `einc check --assert` take plans"
        return Diagnostic("this is a plan, not a text", SourceSpan(path, 1, 1, 1, ""), hint)
    before = data[:at]
    start = before.rfind(b"\n") + 1
    line = data[start:].split(b"\n", 1)[0][:200].decode("utf-8", "replace")
    column = len(data[start:at].decode("utf-8", "replace")) + 1
    span = SourceSpan(path, before.count(b"\n") + 1, column, column + 1, line.rstrip("\r"))
    wide = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    hint = f"{'the file looks like UTF-16; ' if wide else ''}save it as UTF-8"
    return Diagnostic(f"the byte 0x{data[at]:02x} is no UTF-8 text", span, hint)
