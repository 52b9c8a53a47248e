"""What all tests share: the flag that rewrites golden files, and that no test fails by chance."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.property_examples import ALL

# The same examples in every run, however slow the machine: a fifth of those that a test asks for (`property_examples`),
# or all of them (make test-slow); `--hypothesis-profile=new` tries others (make test-new).
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("einc", steady, derandomize=True, max_examples=ALL // 5)
settings.register_profile("all", steady, derandomize=True, max_examples=ALL)
settings.register_profile("new", steady, derandomize=False, print_blob=True, max_examples=ALL)
settings.load_profile("einc")
# The suite is the same on every machine: also where there are GPUs, which `make gpu-check` is for, ...
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# ... whatever somebody has set for what is started here, ...
for name in ("PYTHONUNBUFFERED", "PYTHONWARNINGS", "PYTHONIOENCODING", "COLUMNS", "NO_COLOR", "TERM", "XDG_CACHE_HOME",
             "CUPY_CACHE_DIR", "EINC_KERNEL_CACHE", "EINC_ATTENTION", "EINC_LLM_KEY"):  # fmt: skip
    os.environ.pop(name, None)
# ... with caches of its own, ...
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="einc-tests-")
# ... but for machine code, which is named by all that decides it: making it took half of the time of some files, ...
with contextlib.suppress(OSError):
    code, kept = Path(os.environ["XDG_CACHE_HOME"], "einc", "code"), Path(__file__).parents[1] / "build" / "tests-code"
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    code.parent.mkdir()
    code.symlink_to(kept)
# ... and from a script's background or by nohup, where signals are ignored, by whatever is started as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What the tests make has few cycles, and what collecting them makes stays until the end. Searching all of it for
# garbage, again and again, took some seconds of each process.
gc.set_threshold(100_000)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what the code says now")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test with the mark `sampled(n)`, all but one in n are slow: always the same ones."""
    sampled: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and item.get_closest_marker("slow") is None:
            sampled.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for (_, part), cases in sampled.items():
        for item in sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode()))[-(-len(cases) // part) :]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
