"""Trains the model of stories on one site, on eight, and in eight processes; and beside them by PyTorch's AdamW.

    python -m tests.training_runs.stories [--sites 1 8] [--ranks 8] [--folder build/stories]

Runs are those of models/stories/train.py, from the same random weights; one that a folder has is not made again. Plans
are reproducible: losses and weights of all runs must have the bits of the committed ones.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from einc.training_runs.batches import open_batches
from einc.training_runs.initial import make_weights
from einc.training_runs.settings import RunSettings, find_rate
from einc_runtime.plan.codec import read_bundle

STORIES = Path(__file__).parents[2] / "models" / "stories"
BY_TORCH = 200
"""Steps that PyTorch makes: from then on, the rounding of two ways to add up has grown too far."""
ERROR = 1e-2
"""Of a loss, relative."""
SHOWN = (1, 10, 20, 50, 100, 150, 200, 400, 600, 800)


def read_losses(file: Path) -> list[float]:
    return [float(row.split(",")[1]) for row in file.read_text().splitlines()[1:]]


def train_by_torch(script: dict[str, Any], plan: Path) -> list[float]:
    """The losses of PyTorch from the same weights, on the samples that the plan's steps get."""
    module, bundle = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(STORIES)), read_bundle(str(plan))
    stored = {tensor.name: tensor.stored for tensor in bundle.tensors}
    own = module.state_dict()
    for name, array in make_weights(bundle, "init:0").items():
        own[stored[name]].copy_(torch.from_numpy(array).reshape(own[stored[name]].shape))
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training_runs.stories")
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ranks", type=int, help="also as so many processes, with the last number of sites")
    parser.add_argument("--folder", type=Path, default=Path("build/stories"))
    options = parser.parse_args()
    folder, script = options.folder, runpy.run_path(str(STORIES / "train.py"))
    folder.mkdir(parents=True, exist_ok=True)
    script["write_data"](folder)
    runs = [script["train"](folder, sites, None) for sites in options.sites]
    if options.ranks:
        runs.append(script["train"](folder, options.sites[-1], options.ranks))
    committed = load_file(STORIES / "model.safetensors")
    same = True
    for run in runs:
        weights = script["read_weights"](run)
        same &= run.with_suffix(".csv").read_bytes() == (STORIES / "losses.csv").read_bytes()
        same &= {name: x.tobytes() for name, x in weights.items()} == {k: x.tobytes() for k, x in committed.items()}
    curve, reference = read_losses(STORIES / "losses.csv"), train_by_torch(script, folder / f"{options.sites[0]}.bin")
    print("| step | einc | PyTorch |\n| --- | ---: | ---: |")
    for step in SHOWN:
        beside = f"{reference[step - 1]:.6f}" if step <= BY_TORCH else ""
        print(f"| {step} | {curve[step - 1]:.6f} | {beside} |")
    apart = max(abs(a / b - 1) for a, b in zip(curve, reference, strict=False))
    print(f"losses and weights of {len(runs)} runs {'have the bits of the committed ones' if same else 'DIFFER'}; "
          f"{BY_TORCH} losses differ from PyTorch's by {apart:.2g} of themselves at most")  # fmt: skip
    return 0 if same and apart < ERROR else 1


if __name__ == "__main__":
    sys.exit(main())
