"""What all tests share: the flag that rewrites golden files, and that no test fails by chance."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however slow the machine; `--hypothesis-profile=new` tries others (make test-new).
steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("einc", steady, derandomize=True)
settings.register_profile("new", steady, derandomize=False, print_blob=True)
settings.load_profile("einc")
# The suite is the same on every machine: also where there are GPUs, which `make gpu-check` is for.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# And from a script's background, where interrupts are ignored, by whatever is started as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what the code says now")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
