"""What touches the GPU: a process that prints one JSON record per line, so that a lost device costs one case.

python tests/gpu worker correctness FIRST    all cases from this one on
python tests/gpu worker benchmark NAME
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from runtime.bundle import Bundle
from runtime.session import Session
from tests.gpu.cases import BENCHMARKS, CASES
from tests.gpu.correctness import Array, Result, arrays_of, check, compiled, reference

LOST = 3
"""The exit code of a worker whose device is of no more use."""


def runs() -> list[tuple[int, int]]:
    """All cases with their numbers of sites, as positions of cases."""
    return [(number, sites) for number, case in enumerate(CASES) for sites in case.sites]


def correctness(first: int) -> Iterator[dict[str, Any]]:
    expected: dict[int, dict[str, Array]] = {}
    for position, (number, sites) in enumerate(runs()):
        if position < first:
            continue
        case = CASES[number]
        yield {"start": position}
        try:
            if number not in expected:
                expected = {number: reference(case, arrays_of(compiled(case, 1, case.dtype)))}
            result = check(case, sites, _on_one_gpu, expected[number], "cuda")
        except Exception as error:
            problem = error.render() if hasattr(error, "render") else f"{type(error).__name__}: {error}"
            result = Result(case.title, sites, problem=problem)
        yield {"position": position, **result.record()}
        if result.problem and not _device_works():
            sys.stdout.flush()
            raise SystemExit(LOST)


def _on_one_gpu(bundle: Bundle) -> Session:
    return Session(bundle, "cuda", [0] * len(bundle.memory))


def _device_works() -> bool:
    """An error like an illegal address makes every later call of this process fail."""
    from cupy.cuda import runtime

    try:
        runtime.deviceSynchronize()
        runtime.free(runtime.malloc(256))
    except Exception:
        return False
    return True


def benchmark(name: str) -> Iterator[dict[str, Any]]:
    from tests.gpu.benchmark import run

    (found,) = (one for one in BENCHMARKS if one.name == name)
    yield asdict(run(found))


def main(arguments: list[str]) -> None:
    what, which = arguments
    for record in correctness(int(which)) if what == "correctness" else benchmark(which):
        print(json.dumps(record), flush=True)
