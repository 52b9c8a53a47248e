"""The same LLaMA in llama.cpp, by its C interface: a step of all sequences over full caches, or a prompt.

    python -m tests.bench.with_llama PLAN MODEL STATE THREADS FLASH

writes the caches of a step into a file. Zeros in the place of embeddings leave zeros in the caches, as all competitors
have them before their first step.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import gguf
import llama_cpp as native
import numpy as np

from einc_runtime.plan.codec import read_bundle
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import LlamaShape, drawn

PIECE = 512
"""The most tokens of one call."""
ERROR = 4
"""The level of messages about errors."""


@native.llama_log_callback
def _say_errors(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode())


class Context:
    """A model and its caches, which are of f32 or, as llama.cpp makes them by default, of f16."""

    def __init__(self, bundle: Bundle, model: str, threads: int, flash: bool) -> None:
        native.llama_log_set(_say_errors, None)
        native.llama_backend_init()
        self.shape = shape = LlamaShape.of(bundle)
        dtype = next(tensor.dtype for tensor in bundle.tensors if tensor.name == "g_last")
        self.model = native.llama_model_load_from_file(model.encode(), native.llama_model_default_params())
        options = native.llama_context_default_params()
        options.n_ctx, options.n_seq_max = shape.batch * max(shape.cache, shape.tokens), shape.batch
        options.n_batch = options.n_ubatch = max(PIECE, shape.batch)
        options.n_threads = options.n_threads_batch = threads
        if dtype == "f32":
            options.type_k = options.type_v = int(gguf.GGMLQuantizationType.F32)
        options.flash_attn_type = (
            native.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else native.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self.context = native.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp makes no context for this model")
        self.memory = native.llama_get_memory(self.context)
        self.width = native.llama_model_n_embd(self.model)

    def fill(self) -> None:
        """Zeros in all places of all caches but the last one."""
        batch = native.llama_batch_init(PIECE, self.width, 1)
        ctypes.memset(batch.embd, 0, 4 * PIECE * self.width)
        for sequence in range(self.shape.batch):
            for first in range(0, self.shape.cache - 1, PIECE):
                batch.n_tokens = min(PIECE, self.shape.cache - 1 - first)
                for n in range(batch.n_tokens):
                    _place(batch, n, sequence, first + n, logits=n == 0)
                self.decode(batch)

    def decode(self, batch: native.llama_batch) -> None:
        """Raises SystemExit where llama.cpp refuses the batch."""
        failed = native.llama_decode(self.context, batch)
        if failed:
            raise SystemExit(f"llama_decode returned {failed}")
        native.llama_synchronize(self.context)


def _place(batch: native.llama_batch, n: int, sequence: int, position: int, *, logits: bool) -> None:
    batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = position, 1, sequence, logits


def write_model(bundle: Bundle, plan: str, threads: int, *, flash: bool) -> tuple[Path, Path]:
    """The model's file, and that of the caches before a step; both are written once, by another process."""
    model = Path(plan).with_suffix(".gguf")
    state = Path(plan).with_suffix(".flash" if flash else ".plain")
    if not model.exists():
        subprocess.run([sys.executable, "-m", "tests.bench.gguf_llama", plan, str(model)], check=True)
    if not state.exists() and LlamaShape.of(bundle).cache:
        words = [plan, str(model), str(state), str(threads), "flash" if flash else "plain"]
        subprocess.run([sys.executable, "-m", "tests.bench.with_llama", *words], check=True)
    return model, state


def prepared(bundle: Bundle, model: Path, state: Path, threads: int, *, flash: bool):
    own = Context(bundle, str(model), threads, flash)
    s, given = own.shape, drawn(bundle, weights=False)
    if s.cache:
        none, count = (native.llama_token * 1)(), ctypes.c_size_t()
        if not native.llama_state_load_file(own.context, str(state).encode(), none, 1, ctypes.byref(count)):
            raise SystemExit(f"llama.cpp does not read its caches in {state}")
    batch = native.llama_batch_init(s.batch * s.tokens, 0, 1)
    batch.n_tokens = s.batch * s.tokens
    last = range(batch.n_tokens) if s.cache else given["last"].tolist()
    first = s.cache - 1 if s.cache else 0
    for n, token in enumerate(given["ids"].tolist()):
        batch.token[n] = token
        _place(batch, n, n // s.tokens, first + n % s.tokens, logits=n in last)

    def run() -> None:
        native.llama_memory_seq_rm(own.memory, -1, first, -1)
        own.decode(batch)

    def fetch() -> np.ndarray:
        size = native.llama_vocab_n_tokens(native.llama_model_get_vocab(own.model))
        return np.stack([np.ctypeslib.as_array(native.llama_get_logits_ith(own.context, n), (size,)) for n in last])

    return run, fetch


def main(plan: str, model: str, state: str, threads: str, flash: str) -> None:
    own = Context(read_bundle(plan), model, int(threads), flash == "flash")
    own.fill()
    if not native.llama_state_save_file(own.context, state.encode(), (native.llama_token * 0)(), 0):
        raise SystemExit(f"llama.cpp does not write {state}")


if __name__ == "__main__":
    main(*sys.argv[1:])
