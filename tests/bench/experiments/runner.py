"""Compiles configurations on several processes, and remembers every outcome, so that an interrupted run goes on.

An outcome lies in a file of its own, in a folder named after the sources that it depends on: what other sources gave is
never taken for what these give.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.bench.experiments.compiling import compile_configuration
from tests.bench.experiments.configurations import Configuration, Outcome, Outcomes, read_record, record_of

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "experiments"
SOURCES = ("einc", "runtime/einc_runtime/plan", "grammars", "models")
OWN = ("configurations.py", "compiling.py")
Say = Callable[[str], None]


def run(wanted: Iterable[Configuration], processes: int, say: Say, cache: Path = CACHE) -> Outcomes:
    """The outcome of every configuration; those known are read, the others compiled, and each kept when it is known."""
    order = list(dict.fromkeys(wanted))
    folder = cache / digest_sources()
    folder.mkdir(parents=True, exist_ok=True)
    found = {each: known for each in order if (known := _read(folder, each)) is not None}
    missing = [each for each in order if each not in found]
    say(f"{len(order)} plans: {len(found)} are known, {len(missing)} to compile on {processes} processes")
    progress = _Progress(found, len(missing), say)
    for each, outcome in _compile(missing, min(processes, len(missing))):
        found[each] = outcome
        _write(folder, each, outcome)
        progress.add(each)
    return {each: found[each] for each in order}


def _compile(missing: Sequence[Configuration], processes: int) -> Iterator[tuple[Configuration, Outcome]]:
    """Outcomes as they become known; one process is this one."""
    if processes <= 1:
        yield from ((each, compile_configuration(each)) for each in missing)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_calm) as pool:
        pending = {pool.submit(compile_configuration, each): each for each in missing}
        try:
            for done in as_completed(pending):
                yield pending[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Progress:
    """Says after each compilation how many are left, and the best plan so far for the same task."""

    def __init__(self, found: Outcomes, missing: int, say: Say) -> None:
        self._found = found
        self._missing = missing
        self._done = 0
        self._say = say

    def add(self, each: Configuration) -> None:
        self._done += 1
        outcome = self._found[each]
        rivals = [(other, own) for other, own in self._found.items() if _task(other) == _task(each) and own.fits]
        what = f"{outcome.predicted_ms:.3f} ms" if outcome.fits else outcome.problem
        best = ""
        if rivals:
            name, least = min(rivals, key=lambda pair: pair[1].predicted_ms)
            best = f"; best so far {least.predicted_ms:.3f} ms, {name.selector}, {name.schedule}"
        self._say(f"[{self._done}/{self._missing}] {each.title}: {what}{best}")


def _task(each: Configuration) -> tuple[object, ...]:
    return each.workload, each.machine, each.sites, each.placement


def _calm() -> None:
    """A process of the pool computes with one thread, and leaves the machine to others."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def digest_sources(folders: Iterable[str] = SOURCES) -> str:
    """A short name of everything that an outcome depends on, in its present state."""
    digest = hashlib.sha256()
    files = [Path(__file__).with_name(name) for name in OWN]
    for folder in folders:
        files += sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".json", ".ein", ".lark"))
    for path in files:
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _path(folder: Path, each: Configuration) -> Path:
    name = hashlib.sha256(json.dumps(record_of(each, Outcome()), sort_keys=True).encode()).hexdigest()[:24]
    return folder / f"{name}.json"


def _read(folder: Path, each: Configuration) -> Outcome | None:
    path = _path(folder, each)
    if not path.exists():
        return None
    found, outcome = read_record(json.loads(path.read_text(encoding="utf-8")))
    return outcome if found == each else None


def _write(folder: Path, each: Configuration, outcome: Outcome) -> None:
    """Under another name first, so that what is there is whole."""
    path = _path(folder, each)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(record_of(each, outcome), sort_keys=True), encoding="utf-8")
    draft.replace(path)
