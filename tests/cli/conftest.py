"""Running the command line: in this process for its answers, in one of its own for its signals and streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from einc.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def einc(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs one command in this process; whatever happens, no traceback may be shown."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)

    return run


def einc_process(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Starts `einc` as a user's shell would."""
    environment = {**os.environ, **options.pop("env", {})}
    command = [str(Path(sys.executable).with_name("einc")), *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=options.pop("stderr", subprocess.PIPE),
        **options,
    )


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[bytes]]:
    return einc_process
