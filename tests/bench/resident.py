"""Resident memory of `einc run` and `einc generate` with a random Llama of 134 million parameters, to its weights.

python -m tests.bench.resident [--folder FOLDER] [--kinds f32,bf16,int8,int4]

Each command runs in a process of its own, and the most that this process has held is compared with the bytes of the
weights that the plans load. Models and plans are kept in FOLDER. Every command runs twice, and the second run counts,
which compiles nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from einc_runtime.execution.data.weights import list_weights
from einc_runtime.plan.codec import read_bundle
from einc_runtime.plan.schema import ITEMSIZE
from tests.bench import report

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 2048, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "hidden_act": "silu", "eos_token_id": 0,
}  # fmt: skip
PROMPT = ",".join(str(7 * k + 1) for k in range(40))
TOKENS = 16
KINDS = ("f32", "bf16", "int8", "int4")
TIMES, BEYOND = 1.2, 100e6
"""What may be resident: so many times the weights, and so many bytes beside them."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.resident", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where models and plans are kept; else nowhere")
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(options.folder or scratch)
        rows = [row for kind in options.kinds.split(",") for row in measure(root, kind)]
    print("| | weights (MB) | resident (MB) | times the weights | beyond 1.2 times the weights (MB) |")
    print("| --- | --- | --- | --- | --- |")
    for name, weights, resident in rows:
        ratio, beyond = resident / weights, (resident - TIMES * weights) / 1e6
        print(f"| {name} | {weights / 1e6:.0f} | {resident / 1e6:.0f} | {ratio:.2f} | {beyond:.0f} |")
    above = [name for name, weights, resident in rows if resident > TIMES * weights + BEYOND]
    verdict = f"MISSED by {', '.join(above)}" if above else "reached"
    print(f"\n- at most {TIMES} times the weights and {BEYOND / 1e6:.0f} MB: {verdict}")
    print(report.machine())
    return 0


def measure(root: Path, kind: str) -> list[tuple[str, int, int]]:
    """A name, the bytes of the weights, and the bytes that were resident, of both commands."""
    folder = make_model(root, kind)
    model, plan = root / f"{kind}.ein", root / f"{kind}.bin"
    if not plan.exists():
        call("import", "hf", folder, "--tokens", 128, "-o", model)
        call("compile", model, "-m", "host", "--devices", 1, "-o", plan)
    ids, last = root / "ids.npy", root / "last.npy"
    np.save(ids, np.arange(128) * 31 % CONFIG["vocab_size"])
    np.save(last, np.array([127]))
    inputs = ["--inputs", f"ids={ids}", "--inputs", f"last={last}"]
    of_run: list[Any] = ["run", plan, *inputs, "--weights", folder, "--json"]
    of_text: list[Any] = [
        "generate", folder, PROMPT, "--ids", "--max-tokens", TOKENS, "--plans", root / "plans", "-m", "host", "--json"
    ]  # fmt: skip
    for command in (of_run, of_text):
        call(*command)
    ran, made = json.loads(call(*of_run)), json.loads(call(*of_text))
    step = Path(made["plans"][0]["file"])
    return [
        (f"run {kind}", count_weights(plan), ran["memory_bytes"]["process"]),
        (f"generate {kind}", count_weights(step), made["memory_bytes"]["process"]),
    ]


def count_weights(plan: Path) -> int:
    """The bytes of all weights that a plan loads, each once."""
    tensors = list_weights(read_bundle(str(plan)))
    return sum(int(np.prod(one.shape)) * ITEMSIZE[one.dtype] for one in {one.stored: one for one in tensors}.values())


def make_model(root: Path, kind: str) -> Path:
    """The folder of a random model of a kind, which is written where it is not there."""
    folder = root / kind
    if folder.exists():
        return folder
    if kind in ("int8", "int4"):
        call("quantize", make_model(root, "bf16"), "-o", folder, "--bits", kind.removeprefix("int"), "--head")
        return folder
    folder.mkdir(parents=True)
    dtype = {"f32": "float32", "bf16": "bfloat16"}[kind]
    (folder / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": dtype}), encoding="utf-8")
    write_weights(folder / "model.safetensors", kind)
    return folder


def write_weights(file: Path, kind: str) -> None:
    shapes = list_shapes()
    itemsize, place, header = {"f32": 4, "bf16": 2}[kind], 0, {}
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * itemsize
        header[name] = {"dtype": kind.upper(), "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
            stream.write((values if kind == "f32" else values.astype(ml_dtypes.bfloat16)).tobytes())


def list_shapes() -> dict[str, list[int]]:
    """The tensors of the model by their names in files."""
    width, inner, vocab = (CONFIG[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    own = width * CONFIG["num_key_value_heads"] // CONFIG["num_attention_heads"]
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [vocab, width], "model.norm.weight": [width]}
    for layer in range(CONFIG["num_hidden_layers"]):
        parts = {
            "self_attn.q_proj": [width, width], "self_attn.k_proj": [own, width], "self_attn.v_proj": [own, width],
            "self_attn.o_proj": [width, width], "mlp.gate_proj": [inner, width], "mlp.up_proj": [inner, width],
            "mlp.down_proj": [width, inner], "input_layernorm": [width], "post_attention_layernorm": [width],
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


def call(*arguments: object) -> str:
    """What `einc` prints."""
    command = [sys.executable, "-m", "einc", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | {"NO_COLOR": "1"}, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout.decode()


if __name__ == "__main__":
    sys.exit(main())
