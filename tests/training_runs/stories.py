"""Trains the model of stories from random weights, on one site and on several, and beside it by PyTorch's AdamW.

    python -m tests.training_runs.stories [--steps 200] [--sites 1 8] [--ranks 8] [--folder build/stories]

The text has no other weights than PyTorch's random ones. Plans are reproducible, so that the losses and the last
checkpoint of all runs must have the same bits; PyTorch's losses are compared with theirs.
"""

from __future__ import annotations

import argparse
import random
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from einc.cli.model_folders import read_published_model
from einc.importers.common import ImportRequest
from einc.importers.hf import import_hf
from einc.training_runs.batches import open_batches
from einc_runtime.plan.codec import read_bundle

STORIES = Path(__file__).parents[2] / "models" / "stories"
BATCH, LENGTH, RATE, WARMUP = 8, 64, 2e-3, 20
STORY_COUNT = 4000
SHOWN = (1, 10, 20, 50, 100, 150, 200)


def write_text() -> str:
    """The imported model, with the logits of all tokens and the loss of the next ones."""
    model = read_published_model(str(STORIES))
    text = import_hf(model.config, model.where, model.name, ImportRequest(), model.stored).text
    text = text.replace("input last : i64[sequences]  # rows of `ids`", "input targets : i64[tokens]")
    text = text[: text.index("rows = embedding(last")]
    return (
        f"{text}logits[tokens, vocab] = last_x[tokens, d_model] * table[vocab, d_model]\n"
        "output loss = cross_entropy(logits, targets)\n"
    )


def write_data(folder: Path) -> None:
    """Stories as one text of tokens, and the weights that PyTorch draws."""
    make_story = runpy.run_path(str(STORIES / "train.py"))["make_story"]
    draw, tokenizer = random.Random(1), Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    tokens = [token for _ in range(STORY_COUNT) for token in (*tokenizer.encode(make_story(draw)).ids, 0)]
    np.save(folder / "tokens.npy", np.array(tokens, np.int32))
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(STORIES))
    state = {name: value.contiguous() for name, value in module.state_dict().items() if name != "lm_head.weight"}
    save_file(state, folder / "first.safetensors")


def train_by_torch(folder: Path, plan: Path, steps: int) -> list[float]:
    """The losses of PyTorch, on the samples that the plan's steps get."""
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(STORIES))
    batches = open_batches(read_bundle(str(plan)), [str(folder / "tokens.npy")], 0)
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=RATE), []
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / WARMUP))
    for step in range(1, steps + 1):
        sample = {name: torch.from_numpy(array).reshape(BATCH, LENGTH) for name, array in batches.draw(step).items()}
        logits = module(input_ids=sample["ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample["targets"].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
    return losses


def train(folder: Path, plan: Path, steps: int, name: str, *more: str) -> list[float]:
    """The losses of `einc train`, and its last checkpoint."""
    words = [
        "train", str(plan), "--data", str(folder / "tokens.npy"), "--weights", str(folder / "first.safetensors"),
        "--steps", str(steps), "--rate", str(RATE), "--warmup", str(WARMUP), "--losses", str(folder / f"{name}.csv"),
        "--checkpoints", str(folder / name), *more,
    ]  # fmt: skip
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "einc", *words], check=True)
    print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    rows = (folder / f"{name}.csv").read_text().splitlines()[1:]
    return [float(row.split(",")[1]) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training_runs.stories")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ranks", type=int, help="also as so many processes, with the last number of sites")
    parser.add_argument("--folder", type=Path, default=Path("build/stories"))
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stories.ein").write_text(write_text())
    write_data(folder)
    curves: dict[str, list[float]] = {}
    for sites in options.sites:
        plan = folder / f"{sites}.bin"
        words = ["compile", str(folder / "stories.ein"), "-m", "host", "--devices", str(sites), "-o", str(plan)]
        words += ["-D", f"batch={BATCH}", "-D", f"length={LENGTH}", "--train", "loss", "--optimizer", "adamw"]
        words += ["--clip", "1", "--reproducible", "--selector", "eindecomp", "--schedule", "naive"]
        subprocess.run([sys.executable, "-m", "einc", *words], check=True)
        curves[f"sites-{sites}"] = train(folder, plan, options.steps, f"sites-{sites}")
    if options.ranks:
        name, more = f"ranks-{options.ranks}", ("--ranks", str(options.ranks))
        curves[name] = train(folder, folder / f"{options.sites[-1]}.bin", options.steps, name, *more)
    last = f"step-{options.steps:08d}.safetensors"
    same = len({(folder / name / last).read_bytes() for name in curves}) == 1
    started = time.perf_counter()
    reference = train_by_torch(folder, plan, options.steps)
    print(f"torch: {time.perf_counter() - started:.0f} s")
    print("| step | " + " | ".join([*curves, "PyTorch"]) + " |")
    for step in (step for step in SHOWN if step <= options.steps):
        print(f"| {step} | " + " | ".join(f"{curve[step - 1]:.6f}" for curve in (*curves.values(), reference)) + " |")
    apart = max(abs(a / b - 1) for curve in curves.values() for a, b in zip(curve, reference, strict=True))
    print(f"the last checkpoints {'have the same bits' if same else 'DIFFER'}; "
          f"losses differ from PyTorch's by {apart:.2g} of themselves at most")  # fmt: skip
    return 0 if same and apart < 1e-2 else 1


if __name__ == "__main__":
    sys.exit(main())
