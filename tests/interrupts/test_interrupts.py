"""A few of the interrupts of `make interrupts`, and that the harness sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interrupts import harness


@pytest.mark.parametrize("command", ["version", "models copy"])
def test_interrupts_leave_nothing(command: str, tmp_path: Path) -> None:
    tally = harness.interrupt(tmp_path, command, 5, seed=1)
    assert tally.faults == []
    assert sum(tally.outcomes.values()) == 5


@pytest.mark.slow
@pytest.mark.parametrize("command", harness.COMMANDS)
def test_interrupts_of_every_command_leave_nothing(command: str, tmp_path: Path) -> None:
    harness.prepare(tmp_path)
    assert harness.interrupt(tmp_path, command, 20, seed=2).faults == []


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("import time; time.sleep(30)", "traceback, exit -2"),
        ("import signal, time; signal.signal(2, lambda *_: exit(3)); time.sleep(30)", "exit 3"),
        (
            "import os, signal, time; signal.signal(2, lambda *_: os._exit(130)); "
            "os.fork() or signal.signal(2, signal.SIG_IGN); time.sleep(30)",
            "orphans",
        ),
        (
            "import os, signal, time; signal.signal(2, lambda *_: os._exit(130)); open('out/.x.tmp', 'w'); "
            "time.sleep(30)",
            "files left",
        ),
    ],
)
def test_the_harness_sees_what_is_left(
    program: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "SCRIPT", tmp_path / "program.py")
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(harness, "measure", lambda folder, name: 0.6)
    monkeypatch.setattr(harness.random.Random, "uniform", lambda *_: 0.6)
    tally = harness.interrupt(tmp_path, "version", 1, seed=0)
    assert list(tally.outcomes) == [outcome]
    assert len(tally.faults) == 1


def test_parts_of_folders_and_empty_files_are_left_overs(tmp_path: Path) -> None:
    """A folder of plans may have some of them; any other is whole or absent."""
    names = ("out/model/a.bin", "out/model/b.bin", "out/plans/p.bin", "out/plans/q.bin", "out/y.npy", "x.ein")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("whole")
    present = harness._list(tmp_path)
    assert harness._list_leftovers(tmp_path, present) == []
    (tmp_path / "out/plans/q.bin").unlink()
    assert harness._list_leftovers(tmp_path, present) == []
    (tmp_path / "out/y.npy").write_text("")
    (tmp_path / "out/model/b.bin").unlink()
    (tmp_path / "out/.einc-1.tmp").write_text("part")
    assert harness._list_leftovers(tmp_path, present) == ["out/.einc-1.tmp", "out/model", "out/y.npy"]
