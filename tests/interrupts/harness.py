"""Ends commands by signals at random moments, from their first instruction on, and says what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.import_configs import LLAMA

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "einc"
STORIES = ROOT / "models" / "stories"

SLOW_PROPOSER = "import sys, time; sys.stdin.read(); time.sleep(60)"

COMMANDS: dict[str, tuple[str, ...]] = {
    "version": ("--version",),
    "check": ("check", "ffn.ein"),
    "advise": ("advise", "ffn.ein", "-m", "dgx-a100:3", "--csv", "out/advice.csv", "--html", "out/advice.html"),
    "compile": ("compile", "ffn.ein", "-m", "dgx-a100", "--devices", "3", "-o", "out/ffn.bin"),
    "run": ("run", "ffn.bin", "--inputs", "rand:0", "--weights", "rand:1", "--check", "-o", "out/y.npy"),
    "explain": ("explain", "ffn.bin"),
    "verify": ("verify", "ffn.bin"),
    "describe": ("describe", "ffn.bin"),
    "exprog check": ("exprog", "check", "swap.exprog", "-m", "dgx-h100"),
    "exprog simulate": ("exprog", "simulate", "swap.exprog", "-m", "dgx-h100"),
    "exprog optimize": ("exprog", "optimize", "swap.exprog", "-m", "dgx-h100", "-o", "out/fast.exprog"),
    "exprog optimize --propose": (
        *("exprog", "optimize", "swap.exprog", "-m", "dgx-h100", "-o", "out/fast.exprog", "--time-limit", "1"),
        *("--propose", f'command:{sys.executable} -S -c "{SLOW_PROPOSER}"'),
    ),
    "machine list": ("machine", "list"),
    "machine show": ("machine", "show", "gb200-nvl72"),
    "machine detect": ("machine", "detect"),
    "models list": ("models", "list"),
    "models copy": ("models", "copy", "llama", "-o", "out/llama.ein"),
    "import hf": ("import", "hf", "llama", "-o", "out/imported.ein"),
    "diff": ("diff", "ffn.bin", "ffn.bin"),
    "reshard": ("reshard", "ffn.bin", "ffn5.bin", "-o", "out/reshard.bin"),
    "exprog bound": ("exprog", "bound", "swap.exprog", "-m", "dgx-h100"),
    "exprog export": (
        *("exprog", "export", "recursive-doubling.exprog", "--format", "msccl-xml", "--drop-waits"),
        *("-o", "out/doubling.xml"),
    ),
    "machine import": (
        *("machine", "import", "hosts.txt", "--gpu", "a100-80gb", "--network-gbs", "25", "-o", "out/hosts.json"),
    ),
    "quantize": ("quantize", str(STORIES), "-o", "out/quantized"),
    "machine calibrate": ("machine", "calibrate", "--host", "--quick", "-o", "out/mine.json"),
    "generate": ("generate", str(STORIES), "Mia the fox", "--max-tokens", "4", "--plans", "out/plans"),
}

GROWING = ("out/plans",)
"""Folders that get one whole file after the other. Any other folder is there as a whole, or not at all."""

CODES = {signal.SIGINT: {130}, signal.SIGTERM: {143, -signal.SIGTERM}}
"""A command that has ended leaves SIGTERM to the system, which shells report as 143, too."""

BEFORE = "before Python has handlers"
STARTING = "while Python starts"
ENDED, FINISHED = "ended", "finished before"
GOOD = {BEFORE, STARTING, ENDED, FINISHED}


@dataclass
class Tally:
    """What became of the runs of one command, and a line for each run that left or said what it must not."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def prepare(folder: Path) -> None:
    """The files that the commands read."""
    dims = ("-D", "tokens=24", "-D", "d_model=20", "-D", "d_ff=28")
    call = [sys.executable, str(SCRIPT)]
    for arguments in (
        ("models", "copy", "ffn"),
        ("models", "copy", "swap"),
        ("models", "copy", "recursive-doubling"),
        ("compile", "ffn.ein", "-m", "dgx-a100", "--devices", "3", *dims, "-o", "ffn.bin"),
        ("compile", "ffn.ein", "-m", "dgx-a100", "--devices", "5", *dims, "-o", "ffn5.bin"),
    ):
        subprocess.run([*call, *arguments], cwd=folder, env=_environment(folder), check=True, capture_output=True)
    (folder / "hosts.txt").write_text("node1 slots=8\nnode2 slots=8\n")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))


def measure(folder: Path, name: str) -> float:
    """Seconds that the command takes if nobody interrupts it. Raises where it fails."""
    with _started(folder, name) as process:
        began = time.monotonic()
        _, told = process.communicate(timeout=300)
        if process.returncode:
            raise RuntimeError(f"{name} fails: {told.decode(errors='replace')}")
        return time.monotonic() - began


def interrupt(folder: Path, name: str, count: int, seed: int) -> Tally:
    """Runs the command `count` times, and sends it SIGINT, or each fifth time SIGTERM, at a random moment."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background: commands would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    rng, tally = random.Random(f"{seed} {name}"), Tally()
    seconds = min(measure(folder, name) for _ in range(2))
    present = _list(folder) | {"out", "tmp"}
    for number in range(count):
        sent = signal.SIGTERM if number % 5 == 4 else signal.SIGINT
        delay = rng.uniform(0, 1.05 * seconds)
        outcome, told = _interrupt_once(folder, name, sent, delay)
        left = [] if outcome == "hung" else _list_leftovers(folder, present)
        if left and outcome in GOOD:
            outcome, told = "files left", ", ".join(left)
        tally.outcomes[outcome] += 1
        if outcome not in GOOD:
            tally.faults.append(f"{name}: {sent.name} after {delay:.4f} s: {outcome}: {told.strip()}")
    return tally


def _interrupt_once(folder: Path, name: str, sent: signal.Signals, delay: float) -> tuple[str, str]:
    """The outcome of one run, and what it wrote to standard error."""
    with _started(folder, name) as process:
        time.sleep(delay)
        finished = process.poll() is not None
        process.send_signal(sent)
        try:
            process.wait(60)  # what it tells fits into the pipe, whose end an orphan could keep open
        except subprocess.TimeoutExpired:
            return "hung", ""
        if _has_members(process.pid):
            return "orphans", ""
        told = process.communicate()[1].decode(errors="replace")
    code = process.returncode
    if _is_of_python(told):
        return STARTING, told
    if "Traceback" in told or "Exception ignored" in told:
        return f"traceback, exit {code}", told
    if code == -sent and not told:
        return BEFORE, told
    if code == 0:
        return FINISHED, told  # or the signal came when the exit code was decided
    return (ENDED if code in CODES[sent] and not finished else f"exit {code}"), told


def _is_of_python(told: str) -> bool:
    """Whether a traceback comes from Python itself, before the first line of the program or of what it imports.

    Python calls the moment before the script's first line its line 0.
    """
    ours, before = (f'File "{ROOT}', "einc: "), f'File "{SCRIPT}", line 0,'
    told = told.replace(sys.prefix, "")  # the environment may lie in the checkout
    python = "<frozen" in told or before in told
    return "Traceback" in told and python and not any(name in told.replace(before, "") for name in ours)


@contextlib.contextmanager
def _started(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, of which nothing is left afterwards; `out` is an empty folder."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *COMMANDS[name]],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_members(group: int) -> bool:
    """Whether a process of the group is left after a moment, in which the system takes away those that have ended."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.01)
    return True


def _environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(folder / "tmp"), "CUDA_VISIBLE_DEVICES": ""}


def _list(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _list_leftovers(folder: Path, expected: set[str]) -> Sequence[str]:
    """Files that are not there after a run that nobody interrupts, those without content, and parts of folders."""
    present = _list(folder)
    empty = {name for name in present if (folder / name).is_file() and not (folder / name).stat().st_size}
    folders = [name for name in present if name.startswith("out/") and (folder / name).is_dir() and name not in GROWING]
    partial = {name for name in folders if any(entry.startswith(f"{name}/") for entry in expected - present)}
    return sorted((present - expected) | empty | partial)
