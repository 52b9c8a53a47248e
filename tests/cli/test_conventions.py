"""What holds for every command: exit codes, streams, help, JSON errors, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from einc.cli import root
from einc.errors import CapacityError, Diagnostic, EincError, ModelError, ReadError, SourceSpan
from einc_runtime.cli import failures, output
from einc_runtime.errors import ArrayFault, PlanFault


def commands(group: click.Group | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    group = group or root.root
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [(), *commands()], ids=" ".join)
def test_every_help_has_an_example_of_its_own(path: tuple[str, ...], einc: Callable[..., Any]) -> None:
    result = einc(*path, "--help")
    assert result.code == 0
    assert result.err == ""
    examples = result.out.split("Examples:")[1]
    assert f"einc {' '.join(path)}".strip() in examples
    assert "--debug" in result.out


@pytest.mark.parametrize("arguments", [(), ("models",), ("machine",), ("exprog",)])
def test_without_a_command_the_help_is_what_is_told(arguments: tuple[str, ...], einc: Callable[..., Any]) -> None:
    result = einc(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.rstrip() == einc(*arguments, "--help").out.rstrip()


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("compile",),
        ("compile", "m.ein", "--nonsense"),
        ("compile", "m.ein"),
        ("compile", "missing.ein", "-o", "x.bin"),
        ("check", "missing.ein"),
        ("run", "missing.bin"),
        ("explain", "missing.bin"),
        ("explain", "missing.ein"),
        ("verify", "missing.bin"),
        ("exprog", "simulate", "missing.exprog", "-m", "dgx-a100"),
        ("exprog", "simulate", "missing.exprog"),
        ("models", "copy", "nonsense"),
        ("verify", "nul\0byte"),
        ("compile", "m.ein", "-o", "x.bin", "--time-limit", "nan"),
        ("compile", "m.ein", "-o", "x.bin", "--time-limit", "0"),
        ("exprog", "optimize", "p.exprog", "-m", "dgx-a100", "--time-limit", "soon"),
        ("verify", ""),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: tuple[str, ...], einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = einc(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("einc: ")
    as_json = einc(*arguments, "--json")
    assert as_json.code == 2
    assert as_json.json()["error"]["code"] == "usage"


@pytest.mark.parametrize(
    ("arguments", "meant"), [(("compil", "m.ein"), "compile"), (("exprog", "simluate"), "simulate")]
)
def test_a_mistyped_command_is_guessed(einc: Callable[..., Any], arguments: tuple[str, ...], meant: str) -> None:
    result = einc(*arguments)
    assert result.code == 2
    assert f"Did you mean '{meant}'?" in result.err


@pytest.mark.parametrize("command", [("check",), ("exprog", "check"), ("compile", "-o", "y.bin")])
def test_a_plan_in_place_of_a_text_is_called_one(
    command: tuple[str, ...], einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from einc_runtime.plan.codec import MAGIC

    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.bin").write_bytes(MAGIC + b"\xff" * 50)
    result = einc(*command, "x.bin")
    assert result.code == 65
    assert "this is a plan, not a text" in result.err


@pytest.mark.parametrize("path", [(), ("compile",), ("machine", "import")])
def test_h_is_help(path: tuple[str, ...], einc: Callable[..., Any]) -> None:
    assert einc(*path, "-h").out == einc(*path, "--help").out != ""


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "einc", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("einc ")


def test_unreadable_files_end_with_74(einc: Callable[..., Any], tmp_path: Path) -> None:
    for command in (["check"], ["verify"], ["explain"], ["run"], ["compile", "-o", "x"]):
        result = einc(*command, tmp_path)
        assert result.code == 74, command
        assert str(tmp_path) in result.err


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (CapacityError("too small"), 69, "memory"),
        (ReadError("no"), 74, "read"),
        (PlanFault("broken"), 65, "plan"),
        (ArrayFault("missing"), 65, "array"),
        (RecursionError("deep"), 70, "internal"),
        (MemoryError(), 69, "memory"),
        (ZeroDivisionError("x"), 70, "internal"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 73, "write"),
        (OSError(28, "No space left on device"), 73, "write"),
        (EincError("unspecific"), 70, "error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_exception_has_its_exit_code(
    error: BaseException, code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failures.report(error, debug=False, as_json=False) == code
    assert "Traceback" not in capsys.readouterr().err
    assert failures.describe(error).code == word


def test_documents_are_json_that_every_reader_takes(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_json({"a": [1], "b": "\u00e9"})
    assert capsys.readouterr().out == '{\n  "a": [\n    1\n  ],\n  "b": "\\u00e9"\n}\n'
    with pytest.raises(ValueError, match="nan"):
        output.say_json({"a": float("nan")})


def test_a_bug_asks_for_a_report_in_few_lines_and_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(KeyError("a\nb" * 1000), debug=False, as_json=False)
    text = capsys.readouterr().err
    assert text.startswith("einc: a bug in einc: KeyError: 'a\\nba")
    assert "report" in text
    assert len(text.splitlines()) == 2
    assert len(text) < 1000
    try:
        raise KeyError("there")
    except KeyError as error:
        failures.report(error, debug=True, as_json=False)
    assert "Traceback" in capsys.readouterr().err


def test_a_json_error_lists_all_findings(capsys: pytest.CaptureFixture[str]) -> None:
    span = SourceSpan("m.ein", 3, 5, 6, "y = zz")
    error = ModelError([Diagnostic("unknown name 'zz'", span, "did you mean 'z'?"), Diagnostic("no output")])
    assert failures.report(error, debug=False, as_json=True) == 65
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document == {
        "error": {
            "code": "model",
            "message": "unknown name 'zz'",
            "where": "m.ein:3:5",
            "findings": [
                {"message": "unknown name 'zz'", "where": "m.ein:3:5", "hint": "did you mean 'z'?"},
                {"message": "no output", "where": None, "hint": None},
            ],
        }
    }
    assert "    y = zz\n        ^\n" in err


def test_no_error_hands_the_terminal_commands(einc: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2J.ein"
    path.write_text("model m\ndim n = 4  \x1b]0;title\x07 = \n")
    for arguments in (("check", path), ("check", tmp_path / "\x1b[3J"), ("\x1b[0m",), ("machine", "show", path)):
        result = einc(*arguments)
        assert result.code in (2, 65)
        assert result.err.replace("\n", "").isprintable()
    assert "dim n = 4  ?]0;title? = " in einc("check", path).err


def test_a_check_that_did_not_hold_keeps_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    error = failures.CheckFailed("not equal", {"max_abs_error": 2.0})
    assert failures.report(error, debug=False, as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["max_abs_error"] == 2.0
    assert document["error"]["code"] == "check"


def test_standard_output_that_is_full_ends_with_73(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    for arguments in (["--help"], ["models", "list"], ["machine", "list"]):
        with open("/dev/full", "wb") as full:
            process = start(*arguments, stdout=full)
            _, err = process.communicate(timeout=300)
        assert process.returncode == 73
        assert b"standard output" in err
        assert b"Exception ignored" not in err
        assert b"Traceback" not in err


def test_a_reader_that_went_away_is_no_news(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("models", "copy", "digits", "-o", "-", stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 73
    assert err == b""


def test_an_interrupt_while_reading_ends_with_130(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A pipe that nobody writes to holds each command where it reads."""
    pipe = tmp_path / "m.ein"
    os.mkfifo(pipe)
    target = tmp_path / "out.bin"
    process = start("compile", pipe, "-o", target)
    writer = os.open(pipe, os.O_WRONLY)  # returns when the command has opened its end
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    os.close(writer)
    assert process.returncode == 130
    assert (out, err) == (b"", b"einc: interrupted\n")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.ein"]


def test_an_interrupt_of_the_import_of_click_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(click, "exceptions")
    assert failures.report(KeyboardInterrupt(), debug=False, as_json=False) == 130


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["explain", "/no/such.bin"], 2)])
def test_interrupts_after_the_end_do_not_change_it(arguments: list[str], code: int) -> None:
    """Python calls functions `atexit` first and ends the module's objects last, when its handler is gone already."""
    program = """
import atexit, os, signal, sys
from einc.cli import main

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGINT):
        kill(process, number)

late = Late()
atexit.register(late.__del__)
sys.exit(main.main())
"""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, timeout=300)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_completion_answers_the_shell(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    words = {"_EINC_COMPLETE": "bash_complete", "COMP_WORDS": "einc com", "COMP_CWORD": "1"}
    out, _ = start(env=words).communicate(timeout=300)
    assert b"compile" in out
    words |= {"COMP_WORDS": "einc compile -m dgx", "COMP_CWORD": "3"}
    out, _ = start(env=words).communicate(timeout=300)
    assert b"dgx-a100" in out
    out, _ = start(env={"_EINC_COMPLETE": "bash_source"}).communicate(timeout=300)
    assert b"complete" in out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from einc.cli.main import main; main(['--help']); "
        "print(sorted({'numpy', 'lark', 'rich', 'msgspec', 'einc.compiler', 'einc.api'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_models_are_listed_and_copied(
    einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = einc("models", "list", "--json").json()["models"]
    assert "digits" in [model["name"] for model in listed]
    assert all(model["about"] for model in listed)
    assert einc("models", "copy", "swap").code == 0
    assert einc("exprog", "check", "swap.exprog").code == 0
    assert einc("models", "copy", "digits").code == 0
    text = (tmp_path / "digits.ein").read_text()
    assert einc("models", "copy", "digits").code == 2  # it is there already
    assert einc("models", "copy", "digits", "-o", "-").out == text
    assert einc("models", "copy", "stories").code == 0
    assert {entry.name for entry in (tmp_path / "stories").iterdir()} > {"config.json", "model.safetensors"}
    assert einc("models", "copy", "stories", "-o", "-").code == 2
    result = einc("models", "copy", "digts")
    assert result.code == 2
    assert "did you mean 'digits'?" in result.err


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".local/share/bash-completion/completions/einc"),
        ("zsh", ".zfunc/_einc"),
        ("fish", ".config/fish/completions/einc.fish"),
    ],
)
def test_completion_is_printed_and_installed(
    shell: str, file: str, einc: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    printed = einc("completion", shell)
    assert printed.code == 0
    assert "_EINC_COMPLETE" in printed.out
    assert einc("completion", shell, "--install").code == 0
    assert (tmp_path / file).read_text().strip() == printed.out.strip()
    monkeypatch.setenv("SHELL", "/bin/unknown")
    assert einc("completion").code == 2
