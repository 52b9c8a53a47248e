"""Fuzzes one target: `python -m tests.fuzz TARGET --time 60`, or `make fuzz TARGET=plan TIME=60`.

With atheris, mutations are guided by the branches that they take; with `--fast`, or without atheris, they are drawn at
random, which tries more of them. An input that breaks the contract is written to build/fuzz and ends the run with
exit code 1; `--replay FILE` reads it again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import mmap
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
MAX_SECONDS = 20
"""Processor time of one input; an input has a few kilobytes."""
MAX_MEMORY = 8 << 30
"""Address space of the process: an input that needs more gets a MemoryError, which breaks the contract."""
MAX_BYTES = 1 << 16


class TooSlow(Exception):
    """An input took longer than any may."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--time", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, help="of the mutations; drawn if it is not given")
    parser.add_argument("--fast", action="store_true", help="not guided")
    parser.add_argument("--replay", type=Path, help="read this file alone")
    parser.add_argument("--record", action="store_true", help="add to tests/fuzz/counts.json, and keep new inputs")
    options = parser.parse_args()
    guided = not (options.fast or options.replay) and importlib.util.find_spec("atheris") is not None
    with _instrumented() if guided else contextlib.nullcontext():
        return fuzz(options, guided)


def _instrumented() -> contextlib.AbstractContextManager[object]:
    """What is imported of the product in this context tells atheris which branches it takes."""
    import atheris

    return atheris.instrument_imports(include=["einc", "einc_runtime"])


def fuzz(options: argparse.Namespace, guided: bool) -> int:
    from tests.fuzz.corpus import add_count, keep, minimize, read_corpus
    from tests.fuzz.targets import TARGETS

    if options.target not in TARGETS:
        sys.exit(f"there is no target {options.target}; there are {', '.join(TARGETS)}")
    target = TARGETS[options.target]
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    signal.signal(signal.SIGVTALRM, _refuse)
    if options.replay is not None:
        print("accepted" if _try(target, options.replay.read_bytes()) else "refused")
        return 0
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"{target.name}: {'guided by branches' if guided else 'at random'}, --seed {seed}", flush=True)
    run = _run_guided if guided else _run_random
    fuzzing = Run(target)
    begin = time.monotonic()
    try:
        run(fuzzing, options.time, seed)
    finally:
        seconds = time.monotonic() - begin
        print(f"{fuzzing.inputs:,} inputs in {seconds:.0f} s, {fuzzing.accepted:,} accepted", flush=True)
        if options.record:
            add_count(target.name, fuzzing.inputs, fuzzing.accepted, seconds)
    if options.record and guided:
        keep(target, minimize(target, [*read_corpus(target), *(path.read_bytes() for path in fuzzing.grown.glob("*"))]))
    return 1 if fuzzing.broken else 0


class Run:
    """The figures of one run, and what it does with an input."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._figures = memoryview(mmap.mmap(-1, 24)).cast("q")  # shared with a process that is forked
        self.grown = BUILD / target.name
        self.grown.mkdir(parents=True, exist_ok=True)

    @property
    def inputs(self) -> int:
        return self._figures[0]

    @property
    def accepted(self) -> int:
        return self._figures[1]

    @property
    def broken(self) -> int:
        return self._figures[2]

    def try_input(self, data: bytes) -> bool:
        """Whether an input is accepted; counts it, and keeps it where it breaks the contract."""
        from tests.fuzz.targets import BrokenContract

        self._figures[0] += 1
        try:
            accepted = _try(self.target, data)
        except BrokenContract as error:
            path = BUILD / f"{self.target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
            path.write_bytes(data)
            self._figures[2] += 1
            print(f"{error}\n    python -m tests.fuzz {self.target.name} --replay {path.relative_to(ROOT)}", flush=True)
            return False
        self._figures[1] += accepted
        return accepted


def _refuse(number: int, frame: FrameType | None) -> None:
    raise TooSlow(f"it took more than {MAX_SECONDS} s")


def _try(target: Target, data: bytes) -> bool:
    from tests.fuzz.targets import accepts

    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        return accepts(target, data)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _run_random(run: Run, seconds: float, seed: int) -> None:
    """Mutates what is known; what is accepted is mutated further."""
    from tests.fuzz.corpus import read_corpus

    rng, target = random.Random(seed), run.target
    known = read_corpus(target)
    fixed, end = len(known), time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(64):
            data = target.mutate(rng.choice(known), rng, known)[:MAX_BYTES]
            if run.try_input(data) and rng.random() < 0.1:
                if len(known) < 4 * fixed:
                    known.append(data)
                else:
                    known[rng.randrange(fixed, len(known))] = data


def _run_guided(run: Run, seconds: float, seed: int) -> None:
    """By atheris: inputs that take a new branch are written to build/fuzz/TARGET and mutated further."""
    import atheris

    from tests.fuzz.corpus import read_corpus

    target = run.target
    for number, data in enumerate(read_corpus(target)):
        (run.grown / f"known-{number}").write_bytes(data)
    known = read_corpus(target)

    def mutate(data: bytes, max_size: int, chosen: int) -> bytes:
        return target.mutate(data, random.Random(chosen), known)[:max_size]

    limits = [f"-max_total_time={seconds:.0f}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=0"]
    shown = ["-verbosity=0", f"-artifact_prefix={BUILD}/", f"-seed={seed % (1 << 32) or 1}"]
    arguments = [sys.argv[0], *limits, *shown, str(run.grown)]
    child = os.fork()  # at its end, libFuzzer ends the process
    if child == 0:
        atheris.Setup(arguments, lambda data: run.try_input(data) and None, custom_mutator=mutate)
        atheris.Fuzz()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the process that fuzzes has crashed; its last input is in build/fuzz")


if __name__ == "__main__":
    sys.exit(main())
