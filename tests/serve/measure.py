"""Measures a server on this computer (make bench-serving): a random Llama of 26 million weights in f32.

How long a running text waits for its next token while a prompt of 1,000 tokens comes, how long the first token of this
prompt takes, when it is new and when an earlier one was equal, and a step of one text and of eight.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tests.serve.running import WAIT, Running, serving
from tests.support.generation_cases import word_tokenizer

WIDTH, HIDDEN, HEADS, LAYERS, VOCABULARY = 768, 2048, 12, 4, 2000
PROMPT, BATCH, TOKENS = 1000, 8, 120


def make_config(width: int, hidden: int, heads: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """The configuration of a Llama in which two heads share keys."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "vocab_size": vocabulary,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "head_dim": width // heads, "num_key_value_heads": heads // 2, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "dtype": "float32", "tie_word_embeddings": True, "rope_theta": 10000.0,
        "hidden_act": "silu", "eos_token_id": 0,
    }  # fmt: skip


def write_model(folder: Path) -> None:
    """A folder as transformers writes it, with random weights."""
    rng = np.random.default_rng(0)
    config = make_config(WIDTH, HIDDEN, HEADS, LAYERS, VOCABULARY)
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH), "mlp.down_proj": (WIDTH, HIDDEN),
        "self_attn.k_proj": (WIDTH // 2, WIDTH), "self_attn.v_proj": (WIDTH // 2, WIDTH),
        "mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH),
    }  # fmt: skip
    weights = {
        "model.embed_tokens.weight": rng.standard_normal((VOCABULARY, WIDTH)),
        "model.norm.weight": np.ones(WIDTH),
    }
    for layer in range(LAYERS):
        for name, (rows, columns) in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = rng.standard_normal((rows, columns)) / columns**0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = np.ones(WIDTH)
    (folder / "config.json").write_text(json.dumps(config))
    word_tokenizer(VOCABULARY).save(str(folder / "tokenizer.json"))
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")


class Text(threading.Thread):
    """A text that is streamed: when it was asked for, when each of its tokens came, and its usage."""

    def __init__(self, server: Running, prompt: Sequence[int], tokens: int) -> None:
        super().__init__(daemon=True)
        body = {
            "model": server.model, "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True, "logprobs": 0,
            "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
        }  # fmt: skip
        self._request = urllib.request.Request(f"{server.url}/completions", json.dumps(body).encode())
        self.came: list[float] = []
        self.usage: dict[str, Any] = {}
        self.asked = time.perf_counter()
        self.start()

    def run(self) -> None:
        with urllib.request.urlopen(self._request, timeout=WAIT) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    self.usage = event.get("usage") or self.usage
                    if event["choices"] and event["choices"][0]["logprobs"]:
                        self.came.append(time.perf_counter())

    @property
    def first_ms(self) -> float:
        """Until its first token."""
        self.join(WAIT)
        return 1e3 * (self.came[0] - self.asked)

    @property
    def steps_ms(self) -> list[float]:
        """Between two tokens."""
        self.join(WAIT)
        return [1e3 * step for step in np.diff(self.came)]


def measure(server: Running, seed: int) -> dict[str, float]:
    """All figures, in milliseconds; each seed draws other prompts."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> list[int]:
        return [int(token) for token in rng.integers(1, VOCABULARY, count)]

    for length in (PROMPT, 5):  # plans run for the first time
        Text(server, draw(length), 5).join(WAIT)
    alone = statistics.median(Text(server, draw(5), TOKENS // 2).steps_ms)
    together = [Text(server, draw(5), TOKENS) for _ in range(BATCH)]
    steps = statistics.median(together[0].steps_ms[TOKENS // 4 : TOKENS // 2])
    for text in together:
        text.join(WAIT)
    running = Text(server, draw(5), TOKENS)
    while len(running.came) < TOKENS // 8:
        time.sleep(0.001)
    prompt = draw(PROMPT)
    beside = Text(server, prompt, 1)
    first_beside = beside.first_ms
    running.join(WAIT)
    gaps = [1e3 * (later - sooner) for sooner, later in zip(running.came, running.came[1:], strict=False)
            if later > beside.asked and sooner < beside.came[0]]  # fmt: skip
    prompt = draw(PROMPT)
    new, again = Text(server, prompt, 1), None
    new_ms = new.first_ms
    again = Text(server, prompt, 1)
    return {
        "a step of one text": alone,
        f"a step of {BATCH} texts": steps,
        "the longest step while a prompt comes": max(gaps),
        "the first token of this prompt": first_beside,
        "the first token of a new prompt alone": new_ms,
        "the same again": again.first_ms,
        "of which tokens were cached": again.usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
    }


def main(rounds: int) -> None:
    """Prints the medians of so many rounds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        folder.mkdir()
        write_model(folder)
        with serving(folder, "--batch", BATCH, "--plans", Path(name) / "plans") as server:
            rows = [measure(server, seed) for seed in range(rounds)]
    for key in rows[0]:
        print(f"{key:40} {statistics.median(row[key] for row in rows):10.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
