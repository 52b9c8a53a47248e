"""One training step of a Llama of 30M parameters on this CPU: einc beside PyTorch, compiled, in pairs.

    python -m tests.training.step_speed [--precision bf16] [--pairs 7] [--trace]

Each has a process of its own, whose peak memory is shown, and both make the same steps of AdamW, of 8 sequences of 256
tokens. It ends with 1 where their losses differ by more than `TOLERANCES`. With `--trace`, what the kernels of einc's
step take is shown, by their operators.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from einc_runtime import Session
from einc_runtime.plan.codec import encode, read_bundle
from einc_runtime.plan.schema import KernelTask

FOLDER = Path(__file__).parents[2] / "build" / "step-speed"
VOCABULARY, BATCH, LENGTH, RATE = 8192, 8, 256, 1e-3
MIB = 1 << 20
TOLERANCES = {"f32": 1e-5, "bf16": 2e-3}
"""How far losses may be from each other, relative to them."""
LARGEST = 16
"""Operators that a trace shows."""


def make_module() -> Any:
    """The module of transformers, 29.8M parameters with random weights, and its loss for tokens and next tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
                    num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=True, use_cache=False,
                )
            )  # fmt: skip

        def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            logits = self.model(input_ids=ids).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    torch.manual_seed(0)
    return WithLoss().eval()


def draw_tokens(step: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(step).integers(0, VOCABULARY, (BATCH, LENGTH + 1))
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def prepare(precision: str) -> Path:
    """The plan of the step for this computer, with its weights beside it."""
    import torch
    from safetensors.torch import save_file

    import einc

    path = FOLDER / f"{precision}.bin"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        model = einc.from_torch(make_module(), tuple(map(torch.from_numpy, draw_tokens(0))))
        name = model.outputs[0]
        mixed = {} if precision == "f32" else {"precision": precision}
        plan = einc.compile(model, "host", 1, train=name, optimizer="adamw", selector="eindecomp", **mixed)
        save_file(
            {key: torch.as_tensor(array).contiguous() for key, array in model.weights.items()},
            path.with_suffix(".safetensors"),
        )
        path.write_bytes(encode(plan.bundle))
    return path


def start_einc(precision: str, trace: bool) -> Callable[[int], float]:
    path = FOLDER / f"{precision}.bin"
    session = Session(read_bundle(str(path)), backend="cpu")
    session.load_weights(str(path.with_suffix(".safetensors")))
    ids, targets = sorted(t.name for t in session.inputs if len(t.shape) == 2)
    loss = next(t.name for t in session.outputs if not t.shape)
    session.load("learning_rate", np.float32(RATE))

    def step(number: int) -> float:
        for name, array in zip((ids, targets), draw_tokens(number), strict=True):
            session.load(name, array)
        session.load("step", np.float32(number + 1))
        session.execute(trace=trace)
        if trace:
            show_trace(session)
        return float(session.offload(loss))

    return step


def show_trace(session: Session) -> None:
    """The operators that take longest, without the numbers of layers in their names."""
    taken: Counter[str] = Counter()
    bundle, trace = session.bundle, session.trace
    assert trace is not None
    for run in trace.runs:
        task = bundle.tasks[run.task]
        name = type(task).__name__
        if isinstance(task, KernelTask):
            operation = bundle.operations[task.operation]
            name = f"{operation.family} {''.join(c for c in operation.name if not c.isdigit())}"
        taken[name] += run.end_ms - run.start_ms
    print(f"{trace.completion_ms:.0f} ms; " + "; ".join(f"{n} {ms:.0f}" for n, ms in taken.most_common(LARGEST)))


def start_torch(precision: str, trace: bool) -> Callable[[int], float]:
    import torch

    module = make_module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, fused=True)
    compute = torch.compile(module, dynamic=False)

    def step(number: int) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision != "f32"):
            loss = compute(*map(torch.from_numpy, draw_tokens(number)))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


STARTS = {"einc": start_einc, "torch": start_torch}


def work(name: str, precision: str, trace: bool, pipe: Connection) -> None:
    """Makes the steps whose numbers come, and answers with seconds, the loss, and the peak memory in bytes."""
    step = STARTS[name](precision, trace)
    while True:
        number = pipe.recv()
        started = time.perf_counter()
        loss = step(number)
        pipe.send((time.perf_counter() - started, loss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training.step_speed")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", choices=STARTS)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    preparing = processes.Process(target=prepare, args=(options.precision,))
    preparing.start()
    preparing.join()
    pipes: dict[str, Connection] = {}
    for name in [options.only] if options.only else STARTS:
        pipes[name], theirs = processes.Pipe()
        arguments = (name, options.precision, options.trace, theirs)
        processes.Process(target=work, args=arguments, daemon=True).start()
    ratios: list[float] = []
    for number in range(options.pairs + 1):  # the first one compiles
        answers = {}
        for name, pipe in pipes.items():
            pipe.send(number)
            answers[name] = pipe.recv()
        shown = (
            f"{name} {s:.2f} s, loss {loss:.5f}, {peak / MIB:.0f} MiB" for name, (s, loss, peak) in answers.items()
        )
        print("; ".join(shown), flush=True)
        if number and len(answers) == len(STARTS):
            ratios.append(answers["einc"][0] / answers["torch"][0])
        losses = [loss for _, loss, _ in answers.values()]
        if max(losses) - min(losses) > TOLERANCES[options.precision] * max(losses):
            print(f"step {number}: the losses differ", file=sys.stderr)
            return 1
    if ratios:
        print(f"{options.precision}: einc takes {statistics.median(ratios):.2f} times as long as PyTorch, compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
