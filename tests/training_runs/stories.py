"""The first steps of the model of stories on one site, on eight, in eight processes, and by PyTorch's AdamW.

    python -m tests.training_runs.stories [--sites 1 8] [--ranks 8] [--steps 200] [--folder build/stories]

Runs are those of models/stories/train.py, from the same random weights, which are ended after these steps. Plans are
reproducible: losses must have the bits of the committed ones.
"""

from __future__ import annotations

import argparse
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from einc.training_runs.batches import open_batches
from einc.training_runs.initial import make_weights
from einc.training_runs.settings import RunSettings, find_rate
from einc_runtime.plan.codec import read_bundle

STORIES = Path(__file__).parents[2] / "models" / "stories"
BY_TORCH, PART = 200, 50
"""Steps that PyTorch makes, and those of a part: rounding grows from step to step, in PyTorch's own run, too."""
ROUNDINGS = 4
"""In each part, losses may be so many times as far from those of PyTorch in f64 as PyTorch's own in f32 are."""
PAUSE = 0.5
"""Seconds between two looks at the losses of a run, which it writes every hundred steps."""


def read_rows(file: Path) -> list[str]:
    """The rows of a table of losses, without its head."""
    return file.read_text().splitlines()[1:] if file.exists() else []


def train_first(script: dict[str, Any], plan: Path, ranks: int | None, steps: int) -> list[str]:
    """The losses of the first steps of a run, which is ended then."""
    run = plan.with_name(f"first-{plan.stem}-{ranks or 0}")
    command = [sys.executable, "-m", "einc", *map(str, script["list_arguments"](plan, run, ranks))]
    with subprocess.Popen(command) as process:
        while process.poll() is None and len(read_rows(run.with_suffix(".csv"))) < steps:
            time.sleep(PAUSE)
        process.send_signal(signal.SIGTERM)
    return read_rows(run.with_suffix(".csv"))[:steps]


def train_by_torch(script: dict[str, Any], plan: Path, dtype: torch.dtype) -> list[float]:
    """The losses of PyTorch in a type from the same weights, on the samples that the plan's steps get."""
    module, bundle = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(STORIES)), read_bundle(str(plan))
    stored = {tensor.name: tensor.stored for tensor in bundle.tensors}
    own = module.state_dict()
    for name, array in make_weights(bundle, "init:0").items():
        own[stored[name]].copy_(torch.from_numpy(array).reshape(own[stored[name]].shape))
    module.to(dtype)
    batches = open_batches(bundle, [str(plan.parent / "tokens.npy")], 0)
    settings = RunSettings(script["STEPS"], script["RATE"], script["SCHEDULE"], script["WARMUP"])
    optimizer, losses = torch.optim.AdamW(module.parameters()), []
    for step in range(1, BY_TORCH + 1):
        optimizer.param_groups[0]["lr"] = find_rate(settings, step)
        sample = {name: torch.from_numpy(x).reshape(script["BATCH"], -1) for name, x in batches.draw(step).items()}
        logits = module(input_ids=sample["ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample["targets"].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def measure(losses: list[float], exact: list[float]) -> float:
    """The largest distance from exact losses, relative to these."""
    return max(abs(a / b - 1) for a, b in zip(losses, exact, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training_runs.stories")
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ranks", type=int, help="also as so many processes, with the last number of sites")
    parser.add_argument("--folder", type=Path, default=Path("build/stories"))
    parser.add_argument("--steps", type=int, default=BY_TORCH, help="a number of hundreds")
    options = parser.parse_args()
    folder, script = options.folder, runpy.run_path(str(STORIES / "train.py"))
    folder.mkdir(parents=True, exist_ok=True)
    script["write_data"](folder)
    plans = [script["compile_step"](folder, sites) for sites in options.sites]
    runs = [(plan, None) for plan in plans] + ([(plans[-1], options.ranks)] if options.ranks else [])
    committed, same = read_rows(STORIES / "losses.csv"), True
    for plan, ranks in runs:
        equal = train_first(script, plan, ranks, options.steps) == committed[: options.steps]
        bits = "have the bits" if equal else "DIFFER"
        print(f"{plan.stem} sites, {ranks or 1} processes: {options.steps} losses {bits}", flush=True)
        same &= equal
    curve = [float(row.split(",")[1]) for row in committed]
    by_torch, exact = (train_by_torch(script, plans[0], dtype) for dtype in (torch.float32, torch.float64))
    print("| steps | einc | PyTorch, f32 |\n| --- | ---: | ---: |")
    for start in range(0, BY_TORCH, PART):
        part = slice(start, start + PART)
        ours, theirs = (measure(losses[part], exact[part]) for losses in (curve, by_torch))
        print(f"| {start + 1} to {start + PART} | {ours:.1e} | {theirs:.1e} |")
        same &= ours <= ROUNDINGS * theirs
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
