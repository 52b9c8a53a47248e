"""`einc-runtime`: its three commands answer as those of `einc` do, under their own name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einc_runtime
from einc.cli.main import main as einc_main
from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.cli.blas import load_numpy
from einc_runtime.cli.main import main
from einc_runtime.environment import BLAS_THREADS

TEXT = """\
model m
dim n = 6; dim k = 4
input x : f32[n, k]
weight w : f32[k, n] from "layer.weight"
output y = relu(matmul(x, w))
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    bundle = compile_model(TEXT, "m.ein", CompileOptions(machine="host", selector="eindecomp", devices=2)).bundle
    (tmp_path / "p.bin").write_bytes(einc_runtime.encode(bundle))
    return tmp_path / "p.bin"


@pytest.fixture
def both(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command of both programs, which must agree in everything but their names and times."""

    def run(*arguments: object) -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        of_compiler = einc_main(words)
        its_out, its_err = capfd.readouterr()
        assert of_compiler == code
        assert err.replace("einc-runtime", "einc") == its_err
        if not {"run", "verify", "describe"} & set(words):  # times; `einc` proves more, and tells more of times
            assert out.replace("einc-runtime", "einc") == its_out
        return code, out, err

    return run


def test_a_plan_is_described_verified_and_run(both: Callable[..., tuple[int, str, str]], plan: Path) -> None:
    described = json.loads(both("describe", plan, "--json")[1])
    assert [(row["name"], row["shape"]) for row in described["inputs"]] == [("x", [6, 4])]
    assert [row["stored"] for row in described["weights"]] == ["layer.weight"]
    assert [row["name"] for row in described["outputs"]] == ["y"]
    assert len(described["memory_bytes"]) == len(described["devices"]) == 2
    text = both("describe", plan)[1]
    assert text.splitlines()[3:5] == ["inputs:", "  x f32[n=6, k=4]"]
    assert text.splitlines()[5:7] == ["weights:", "  w f32[k=4, n=6] (stored as layer.weight)"]
    assert text.splitlines()[7] == "outputs:"
    assert json.loads(both("verify", plan, "--json")[1])["tasks"] == described["tasks"]
    target = plan.with_name("y.npy")
    code, out, _ = both("run", plan, "--inputs", "rand:0", "--weights", "rand:1", "-o", target)
    assert code == 0
    assert out.startswith("m on the cpu, 2 sites: y f32[6, 6] in ")
    assert np.load(target).shape == (6, 6)
    code, out, _ = both("run", plan, "--inputs", "rand:0", "--weights", "rand:1", "--expect", target, "--json")
    assert (code, json.loads(out)["max_abs_error"]) == (0, 0.0)
    np.save(target, np.load(target) + 1)
    assert both("run", plan, "--inputs", "rand:0", "--weights", "rand:1", "--expect", target)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("verify", "missing.bin"), 2),
        (("verify", "--wrong"), 2),
        (("run",), 2),
        (("describe", "."), 74),
        (("describe", __file__), 65),
        (("run", __file__, "-o", "/no/such/folder/y.npy"), 65),
    ],
    ids=str,
)
def test_failures_have_the_same_exit_codes(
    both: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], code: int
) -> None:
    exit_code, _, err = both(*arguments)
    assert exit_code == code
    assert err.startswith("einc-runtime: ")
    assert "Traceback" not in err


def test_a_check_is_left_to_the_compiler(plan: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(plan), "--inputs", "rand:1", "--weights", "rand:1", "--check"]) == 2
    assert "use `einc run PLAN --check`" in capfd.readouterr().err


def test_commands_of_the_compiler_are_not_here(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile"]) == 2
    assert main(["run", "p.bin", "--check"]) == 2
    assert "einc-runtime --help" in capfd.readouterr().err
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"einc-runtime {einc_runtime.__version__}\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_it_as_they_end_einc(number: signal.Signals, code: int, tmp_path: Path) -> None:
    pipe = tmp_path / "p.bin"
    os.mkfifo(pipe)
    process = subprocess.Popen([sys.executable, "-m", "einc_runtime", "verify", pipe], stderr=subprocess.PIPE)
    writer = os.open(pipe, os.O_WRONLY)  # returns when the command has opened its end
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    os.close(writer)
    assert process.returncode == code
    assert err.startswith(b"einc-runtime: ")


def test_every_help_names_the_program_itself(capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "verify", "describe"):
        assert main([command, "--help"]) == 0
        text = capfd.readouterr().out
        assert f"einc-runtime {command} ffn.bin" in text
        assert "PROGRAM" not in text


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from einc_runtime.cli.main import main; main(['--help']); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in {'numpy', 'msgspec', 'einc'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_run_starts_and_ends_with_little(plan: Path) -> None:
    """It imports nothing of the compiler, BLAS starts no threads, and the end searches no objects for garbage."""
    code = """
import atexit, gc, os, sys
from einc.cli.main import main

@atexit.register
def tell():
    from threadpoolctl import threadpool_info
    print(max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"))
    print([name for name in os.environ if name.endswith("_NUM_THREADS")])
    print([name for name in ("einc.graph.graph", "einc_runtime.cli.ranks") if name in sys.modules])
    print(len(gc.get_objects()) < gc.get_freeze_count())

sys.exit(main())
"""
    arguments = ["run", str(plan), "--inputs", "rand:0", "--weights", "rand:1"]
    environment = {name: value for name, value in os.environ.items() if name not in BLAS_THREADS}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert done.stderr.splitlines()[-4:] == ["1", "[]", "[]", "True"]  # what is no result is no standard output


@pytest.mark.parametrize("name", BLAS_THREADS)
def test_numpy_has_the_threads_that_a_user_has_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in BLAS_THREADS:
        monkeypatch.delenv(limit, raising=False)
    monkeypatch.setenv(name, "2")
    monkeypatch.delitem(sys.modules, "numpy")
    load_numpy()
    assert "numpy" not in sys.modules
    assert [limit for limit in BLAS_THREADS if limit in os.environ] == [name]


def test_the_package_offers_what_a_server_needs() -> None:
    names: list[Any] = [getattr(einc_runtime, name) for name in einc_runtime.__all__]
    assert all(names)
    assert set(einc_runtime.__all__) <= set(dir(einc_runtime))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        einc_runtime.absent  # noqa: B018
