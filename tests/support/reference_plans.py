"""Imported models as plans: through the command line, the files it writes, and a session. No torch is needed here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from einc.cli.main import main
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import read_bundle
from tests.support.sampling import first

Array = np.ndarray[Any, np.dtype[Any]]


SHIFTS = first(1, range(8))
"""What is added to the position of a model: with all of them, each model runs on all numbers of sites."""


def choose_sites(position: int) -> int:
    """From 1 to 8: models one after the other have all of them between them."""
    return 1 + position % 8


def session(
    folder: Path, work: Path, sites: int, *options: object, schedule: str = "ai", step: Sequence[str] = ()
) -> Session:
    """A session of the plan that a folder comes to: imported, compiled, written, read, with its weights loaded."""
    model, plan = work / "model.ein", work / f"plan{sites}.bin"
    for arguments in (
        ["import", "hf", folder, "-o", model, *options],
        [
            "compile",
            model,
            "-m",
            "host",
            "--devices",
            sites,
            "--schedule",
            schedule,
            "--selector",
            "eindecomp",
            *step,
            "-o",
            plan,
        ],
    ):
        assert main([str(argument) for argument in arguments]) == 0, arguments
    opened = Session(read_bundle(str(plan)), "cpu")
    opened.load_weights(folder)
    return opened


def outputs(opened: Session, **inputs: Array) -> dict[str, Array]:
    """One execution."""
    opened.load_all(inputs)
    opened.execute()
    return {tensor.name: opened.offload(tensor.name) for tensor in opened.outputs}


def all_logits(folder: Path, work: Path, sites: int, ids: Array) -> Array:
    """A decoder's logits of all tokens of these prompts [batch, tokens]."""
    batch, tokens = ids.shape
    opened = session(folder, work, sites, "--logits", "all", "--batch", batch, "--tokens", tokens)
    return outputs(opened, ids=ids.reshape(-1))["logits"].reshape(batch, tokens, -1)


def greedy(folder: Path, work: Path, sites: int, prompts: list[list[int]], count: int) -> list[list[int]]:
    """The next `count` tokens of every prompt: the prompts at once, then one step after the other with one plan."""
    batch, tokens = len(prompts), max(map(len, prompts))
    slots = tokens + count + 3  # more than is ever filled
    lengths = np.array([len(prompt) for prompt in prompts])
    ids = np.array([prompt + [0] * (tokens - len(prompt)) for prompt in prompts], np.int64)
    options = ("--batch", batch, "--caches", "--tokens")
    first = session(folder, work, sites, *options, tokens, schedule="naive")
    results = outputs(first, ids=ids.reshape(-1), last=np.arange(batch) * tokens + lengths - 1)
    step = session(folder, work, sites, *options, slots, schedule="naive", step=("--step", "tokens=1"))
    caches = {}
    for name, array in results.items():
        if name != "logits":
            heads, _, width = array.shape
            cache = np.full((heads, batch, slots, width), np.nan, array.dtype)  # what is not written must not matter
            cache[:, :, :tokens] = array.reshape(heads, batch, tokens, width)
            caches[f"{name}.cache"] = cache.reshape(heads, -1, width)
    step.load_all(caches)
    continued: list[list[int]] = [[] for _ in prompts]
    for number in range(count):
        chosen = results["logits"].argmax(-1)
        for tokens_of, token in zip(continued, chosen.tolist(), strict=True):
            tokens_of.append(token)
        inputs = {"ids": chosen.astype(np.int64), "positions": lengths + number, "last": np.arange(batch)}
        results = outputs(step, **inputs)
    return continued
