"""Progress where stderr is no terminal: a line now and then, and none of short work."""

from __future__ import annotations

import pytest

from einc_runtime.cli import output, progress


def test_a_log_gets_a_line_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(output, "show_progress", lambda: False)
    with progress.show_phases() as phase:
        for now in (1.0, 12.0, 29.9, 31.0, 40.0, 75.0):
            phase(f"option {now:.0f} of 99")
    captured = capsys.readouterr()
    assert captured.err == "einc: after 31 s: option 31 of 99\neinc: after 75 s: option 75 of 99\n"
    assert captured.out == ""
