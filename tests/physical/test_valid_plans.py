"""What the compiler makes, runtimes read: an operator whose kernel they lack is refused before a plan is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from einc.cli.main import main
from einc.compiler import compile_model
from einc.errors import InternalError
from einc.ops import rows
from einc.ops.base import KernelCall
from einc.options import CompileOptions
from einc_runtime.plan.codec import decode, encode

MODEL = "model m\ndim n = 8\ninput x : f32[n, n]\noutput y = softmax(x)\n"


def call_other_kernel(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    """Lets softmax say that this kernel computes it."""
    call = KernelCall(name, tuple(attributes.items()))
    monkeypatch.setattr(rows.RowOperator, "kernel", property(lambda self: call))


LIES = {
    "unknown": ("running_sums", {"axis": 1}, "running_sums, where rows with its attributes has softmax"),
    "attribute": ("softmax", {"axis": "one"}, "'one', where rows with its attributes has 1"),
    "more": ("softmax", {"axis": 1, "base": 2.0}, "2.0, where rows with its attributes has nothing"),
    "fewer": ("softmax", {}, "nothing, where rows with its attributes has 1"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_kernel_that_no_runtime_has_is_refused(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, attributes, reason = LIES[lie]
    call_other_kernel(monkeypatch, name, **attributes)
    with pytest.raises(InternalError) as caught:
        _ = compile_model(MODEL, "m.ein", CompileOptions(machine="dgx-v100", devices=2)).bundle
    assert reason in caught.value.message
    assert "operator y (softmax)" in str(caught.value.where)
    assert caught.value.hint


def test_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.ein").write_text(MODEL)
    call_other_kernel(monkeypatch, "running_sums", axis=1)
    plan = tmp_path / "m.bin"
    assert main(["compile", str(tmp_path / "m.ein"), "-m", "dgx-v100", "-o", str(plan)]) == InternalError.exit_code
    assert "running_sums, where rows" in capsys.readouterr().err
    assert not plan.exists()


def test_what_is_valid_is_written_and_read() -> None:
    bundle = compile_model(MODEL, "m.ein", CompileOptions(machine="dgx-v100", devices=2)).bundle
    assert decode(encode(bundle)) == bundle
