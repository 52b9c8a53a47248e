"""Prompts of a random Llama of 134 million parameters with weights as they lie, to the same with packed weights.

python -m tests.bench.packing [--folder FOLDER] [--kind bf16] [--tokens 32,128,512] [--pairs 15]

`einc generate` has weights once, in the layout that decode steps read. A library that multiplies many rows then packs
parts of a weight in every call. Here both ways run in turns in one process, with the same bits or not. Models and plans
are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.plan.codec import read_bundle
from tests.bench import report
from tests.bench.resident import CONFIG, call, make_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.packing", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where models and plans are kept; else nowhere")
    parser.add_argument("--kind", default="bf16")
    parser.add_argument("--tokens", default="32,128,512", help="of prompts, as einc generate reads them")
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(options.folder or scratch)
        for tokens in map(int, options.tokens.split(",")):
            print(f"{options.kind}, {tokens} tokens: {measure(root, options.kind, tokens, options.pairs)}")
    print(report.machine())
    return 0


def measure(root: Path, kind: str, tokens: int, pairs: int) -> str:
    """What weights as they lie cost, relative to packed ones."""
    folder, prompt = make_model(root, kind), ",".join(str(7 * k + 1) for k in range(tokens))
    made = call(
        "generate", folder, prompt, "--ids", "--max-tokens", 1, "--plans", root / "plans", "-m", "host", "--json"
    )
    sessions = [open_session(json.loads(made)["plans"][-1]["file"], folder, prepack) for prepack in (True, False)]
    for session in sessions:
        session.execute()
    logits = [session.offload("logits").tobytes() for session in sessions]
    ratios = []
    for pair in range(pairs):
        took = {session: session.execute() for session in (sessions if pair % 2 else sessions[::-1])}
        ratios.append(took[sessions[1]] / took[sessions[0]])
    low, middle, high = statistics.quantiles(ratios, n=4)
    bits = "the same bits" if logits[0] == logits[1] else "other bits"
    return f"{middle:.2f} times as long ({low:.2f} to {high:.2f}), {pairs} pairs, {bits}"


def open_session(plan: str, folder: Path, prepack: bool) -> Session:
    """A session of a plan for a prompt, whose weights and inputs are loaded."""
    session = Session(read_bundle(plan), "cpu", common=SharedBuffers(prepack=prepack), verify=False)
    session.load_weights(str(folder))
    for one in session.inputs:
        places = np.arange(one.shape[0])
        session.load(one.name, places * 31 % CONFIG["vocab_size"] if one.name == "ids" else places)
    return session


if __name__ == "__main__":
    sys.exit(main())
