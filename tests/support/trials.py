"""Many models tried one by one, each in a process of its own with a limit, and a table of what became of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Check = Callable[[str], str | None]
"""What is tried of a model: it returns figures, or nothing where the model is equal, and raises what is wrong."""
Table = dict[str, dict[str, str]]

MAX_SECONDS = 120
"""Of one core, for all checks of a model. Most take 5 to 10; recurrences of chunks with 64 steps take 40."""
_FOLDERS = re.compile(r'"/[^"]*/(?:site-packages/|(?=tests/))')
_LONGEST = 240
"""Characters of a reason: the operator and the line that called it."""


def list_equal(table: Table, check: str) -> list[str]:
    return [name for name, results in table.items() if results.get(check) == "equal"]


def fill_table(path: Path, names: Sequence[str], checks: Mapping[str, Check], seconds: int = MAX_SECONDS) -> None:
    """Tries models, and writes the table anew after each; rows of others, and what else a row has, stay."""
    import torch

    torch.set_num_threads(1)  # threads do not survive in the processes of the models
    table: Table = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        table[name] = table.get(name, {}) | try_limited(name, checks, seconds)
        print(name, table[name], flush=True)
        path.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    for check in checks:
        print(f"{check}: {len(list_equal(table, check))} of {len(table)} are equal")


def try_limited(name: str, checks: Mapping[str, Check], seconds: int = MAX_SECONDS) -> dict[str, str]:
    """What became of a model. Its process has all modules already, and all checks share its limit."""
    processes: Any = multiprocessing.get_context("fork")
    reading, writing = processes.Pipe(duplex=False)
    process = processes.Process(target=_run, args=(writing, name, checks, seconds))
    process.start()
    writing.close()
    results: dict[str, str] = {}
    try:
        while True:
            check, result = reading.recv()
            results[check] = result
    except EOFError:
        process.join()
    late = f"all checks take more than {seconds} s of one core, or more memory than there is"
    return {check: results.get(check, late) for check in checks}


def _run(answer: Connection, name: str, checks: Mapping[str, Check], seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what transformers says of kernels that are not installed
    for check, function in checks.items():
        answer.send((check, _describe(name, function)))
    answer.close()


def _describe(name: str, function: Check) -> str:
    """`equal`, the figures, or what was wrong."""
    try:
        figures = function(name)
    except BaseException as error:
        text = _FOLDERS.sub('"', str(error).strip()) or type(error).__name__
        return f"{type(error).__name__}: {' '.join(text.split())[:_LONGEST]}"
    return figures or "equal"
