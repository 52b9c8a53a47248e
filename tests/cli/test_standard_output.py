"""Nothing but einc writes to standard output: every command, beside libraries that print whatever they like."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from einc.cli.main import main
from einc.cli.root import root as compiler_root
from einc.exchange.language.resolve import read_program
from einc.frontend import build as read_model
from einc.machines.load import load_machine, parse_machine
from einc_runtime.cli.main import main as runtime_main
from einc_runtime.cli.root import root as runtime_root
from einc_runtime.plan.codec import decode

MODELS = Path(__file__).parents[2] / "models"
MODEL = """
model noisy
dim n = 24
dim m = 10
input x : f32[n, m]
weight w : f32[m, m]
output y = relu(matmul(x, w))
"""
NOISE = """
import atexit, builtins, ctypes, os, sys

def shout(what):
    os.write(1, f"{what} writes to descriptor 1\\n".encode())
    print(what, "prints")
    ctypes.CDLL(None).puts(f"{what} calls puts".encode())
    ctypes.CDLL(None).fflush(None)
    if what == "highspy":
        os.system("echo a process writes")

loud = {"highspy", "lark", "msgspec", "llvmlite", "numpy", "ml_dtypes", "threadpoolctl", "tokenizers"}
plain = builtins.__import__

def loudly(name, *rest, **more):
    module = plain(name, *rest, **more)
    package = name.partition(".")[0]
    if package in loud and "einc_runtime" in sys.modules:
        loud.discard(package)
        shout(package)
    return module

builtins.__import__ = loudly
atexit.register(shout, "the end")
"""

WITH_JSON: dict[str, str] = {
    "einc compile": "noisy.ein -m dgx-v100 --devices 4 -o new.bin",
    "einc run": "four.bin --inputs rand:0 --weights rand:1",
    "einc train": "four.bin --data x.npy --weights rand:1 --steps 1 --rate 1",
    "einc generate": "STORIES Mia --max-tokens 2 --plans plans",
    "einc explain": "four.bin",
    "einc check": "noisy.ein",
    "einc advise": "noisy.ein -m dgx-v100:2",
    "einc diff": "four.bin two.bin",
    "einc reshard": "four.bin two.bin",
    "einc verify": "four.bin",
    "einc tune": "four.bin",
    "einc describe": "four.bin",
    "einc exprog check": "swap.exprog",
    "einc exprog simulate": "swap.exprog -m dgx-v100",
    "einc exprog optimize": "swap.exprog -m dgx-v100 --iterations 1",
    "einc exprog bound": "swap.exprog -m dgx-v100",
    "einc exprog import": "swap.json --format mscclpp-json",
    "einc exprog export": "swap.exprog --format mscclpp-json",
    "einc machine list": "",
    "einc machine show": "dgx-v100",
    "einc machine detect": "",
    "einc machine calibrate": "--sites 0",
    "einc machine import": "hosts.txt --hbm-gbs 100 --memory-gib 8 --network-gbs 10",
    "einc models list": "",
    "einc library list": "",
    "einc quantize": "STORIES -o quantized",
    "einc import gguf": "STORIES -o stories.ein",
    "einc import hf": "STORIES -o stories.ein",
    "einc import onnx": "relu.onnx -o relu",
    "einc import torch": "relu.pt2 -o relu",
    "einc-runtime run": "four.bin --inputs rand:0 --weights rand:1",
    "einc-runtime verify": "four.bin",
    "einc-runtime tune": "four.bin",
    "einc-runtime describe": "four.bin",
}
"""What each command is called with, so that it prints a document: its result, or (calibrate, train, tune) an error."""


def read_array(data: bytes) -> None:
    assert np.load(io.BytesIO(data)).shape == (24, 10)


def read_machine(data: bytes) -> None:
    parse_machine(data.decode())


def read_exprog(data: bytes) -> None:
    read_program(data.decode(), "-", load_machine("dgx-v100"))


def read_algorithm(data: bytes) -> None:
    assert json.loads(data)["gpus"]


def read_text(data: bytes) -> None:
    read_model(data.decode(), "-", {}, None, None)


TO_STDOUT: dict[str, tuple[str, Callable[[bytes], object]]] = {
    "einc compile": ("noisy.ein -m dgx-v100 --devices 4 -o -", decode),
    "einc run": ("four.bin --inputs rand:0 --weights rand:1 -o -", read_array),
    "einc reshard": ("four.bin two.bin -o -", decode),
    "einc exprog simulate": ("swap.exprog -m dgx-v100 -o -", read_exprog),
    "einc exprog optimize": ("swap.exprog -m dgx-v100 --iterations 1 -o -", read_exprog),
    "einc exprog import": ("swap.json --format mscclpp-json -o -", read_exprog),
    "einc exprog export": ("swap.exprog --format mscclpp-json -o -", read_algorithm),
    "einc machine import": ("hosts.txt --hbm-gbs 100 --memory-gib 8 --network-gbs 10 -o -", read_machine),
    "einc models copy": ("swap -o -", read_exprog),
    "einc import gguf": ("STORIES -o -", read_text),
    "einc import hf": ("STORIES -o -", read_text),
    "einc-runtime run": ("four.bin --inputs rand:0 --weights rand:1 -o -", read_array),
}
NOT_TRIED = {
    "einc machine calibrate": "it takes a quarter of a minute",
    "einc quantize": "it writes a folder",
    "einc import onnx": "it writes a folder",
    "einc import torch": "it writes a folder",
}


def list_commands(root: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(root, click.Group):
        yield name, root
        return
    context = click.Context(root)
    for each in root.list_commands(context):
        command = root.get_command(context, each)
        assert command is not None
        yield from list_commands(command, f"{name} {each}")


COMMANDS = dict([*list_commands(compiler_root, "einc"), *list_commands(runtime_root, "einc-runtime")])


def list_with_option(option: str) -> set[str]:
    return {name for name, command in COMMANDS.items() if any(option in each.opts for each in command.params)}


def test_every_command_that_prints_a_document_is_tried() -> None:
    assert set(WITH_JSON) == list_with_option("--json")
    assert set(TO_STDOUT) | set(NOT_TRIED) == list_with_option("-o")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read, and a library that prints wherever it can."""
    working = tmp_path_factory.mktemp("noise")
    (working / "sitecustomize.py").write_text(NOISE)
    (working / "noisy.ein").write_text(MODEL)
    (working / "hosts.txt").write_text("alpha slots=2\nbeta slots=2\n")
    (working / "swap.exprog").write_text((MODELS / "exchanges" / "swap.exprog").read_text())
    for name, devices in (("four", 4), ("two", 2)):
        arguments = ["compile", str(working / "noisy.ein"), "-m", "dgx-v100", "--devices", str(devices)]
        assert main([*arguments, "-o", str(working / f"{name}.bin")]) == 0
    written = ["exprog", "export", str(working / "swap.exprog"), "--format", "mscclpp-json"]
    assert main([*written, "-o", str(working / "swap.json")]) == 0
    return working


def list_arguments(text: str) -> list[str]:
    return [str(MODELS / "stories") if word == "STORIES" else word for word in text.split()]


def run(folder: Path, command: str, arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command in a process of its own, among libraries that print."""
    program, *words = command.split()
    module = {"einc": "einc", "einc-runtime": "einc_runtime"}[program]
    return subprocess.run(
        [sys.executable, "-m", module, *words, *list_arguments(arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        timeout=300,
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("command", WITH_JSON)
def test_a_document_is_all_that_a_command_prints(command: str, folder: Path) -> None:
    done = run(folder, command, f"{WITH_JSON[command]} --json")
    assert isinstance(json.loads(done.stdout), dict), done.stderr.decode()
    assert b"the end prints" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", TO_STDOUT)
def test_a_file_is_all_that_a_command_writes_to_standard_output(command: str, folder: Path) -> None:
    arguments, read = TO_STDOUT[command]
    done = run(folder, command, arguments)
    assert done.returncode == 0, done.stderr.decode()
    read(done.stdout)
    assert b"the end prints" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", sorted(set(WITH_JSON) & set(TO_STDOUT)))
def test_no_command_gives_two_results_at_once(
    command: str, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses to, or its document is what it would have written; in this process, as nothing else has to print."""
    monkeypatch.chdir(folder)
    program, *words = command.split()
    capfd.readouterr()
    {"einc": main, "einc-runtime": runtime_main}[program]([*words, *list_arguments(TO_STDOUT[command][0]), "--json"])
    out, err = capfd.readouterr()
    assert isinstance(json.loads(out), dict), err


def test_help_is_a_result() -> None:
    for arguments in (["--help"], ["compile", "--help"], ["machine", "--help"], ["--version"]):
        done = subprocess.run([sys.executable, "-m", "einc", *arguments], capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout


def test_the_solver_says_nothing() -> None:
    """In Python, too: from 1.16 on, HiGHS says who made it when it is made."""
    program = "from einc.exchange.linear import make_solver; make_solver(); print('einc')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"einc\n", b"")
