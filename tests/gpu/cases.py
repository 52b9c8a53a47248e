"""What `make gpu-check` runs: cases of correctness, each for several numbers of sites on one GPU, and benchmarks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.model_texts import TEXTS
from tests.support.training_texts import LETTERS

MODELS = Path(__file__).resolve().parents[2] / "models"
SITES = (1, 2, 4, 8)
ALL_SITES = tuple(range(1, 9))
TOLERANCE = {"f64": 1e-11, "f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}
"""Of the largest value of an output; those of f16 and bf16 are ten roundings."""

Definitions = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A model in one dtype (None: as it stands), for every number of sites; `slow` ones are too large for a CPU. All
    runs of a `reproducible` one must have the same bits. Its states may have another type than the text says. With an
    `optimizer`, it is a step of training on the output `loss`; with `microbatches`, a pipeline of two stages."""

    name: str
    dtype: str | None
    definitions: Definitions = ()
    preset: str | None = None
    sites: tuple[int, ...] = SITES
    slow: bool = False
    label: str = ""
    reproducible: bool = False
    states: str = ""
    optimizer: str = ""
    microbatches: int = 0

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.name, self.label, self.dtype or "") if part)

    @property
    def uses_libraries(self) -> bool:
        """Whether flash-attn or PyTorch may compute its attention."""
        return self.dtype in ("f16", "bf16") and not self.states and "attention(" in self.text()

    def text(self) -> str:
        text = {**TEXTS, "letters": LETTERS}.get(self.name) or (MODELS / f"{self.name}.ein").read_text()
        return re.sub(r"(state \w+ *: )\w+", rf"\g<1>{self.states}", text) if self.states else text


def _sizes(**values: object) -> Definitions:
    return tuple((name, str(value)) for name, value in values.items())


_BLOCK = _sizes(seq_lens=[300, 212], d_model=512, heads_q=8, heads_kv=4, d_head=64, d_ff=1408)
_ODD_BLOCK = _sizes(seq_lens=[5, 9, 2], d_model=48, heads_q=6, heads_kv=3, d_head=8, d_ff=40)
_UNEVEN_BLOCK = _sizes(seq_lens=[37, 70], d_model=160, heads_q=10, heads_kv=5, d_head=16, d_ff=300)

CASES: tuple[Case, ...] = (
    *(Case("llama_block", dtype, _BLOCK, slow=True) for dtype in ("f16", "f32", "bf16")),
    *(Case("llama_block", dtype, _ODD_BLOCK, label="odd") for dtype in ("f32", "f16")),
    Case("llama", "f32", preset="tiny"),
    Case("llama", "bf16", preset="tiny", sites=(1, 4)),
    Case("llama_decode", "f32", preset="tiny"),
    Case("llama_decode", "bf16", preset="tiny", sites=(1, 4), label="caches of 8 bits", states="f8e4m3"),
    *(Case("letters", "f32", sites=(1, 3, 8), label=f"trained by {name}", optimizer=name) for name in ("adamw", "sgd")),
    *(Case("ffn", dtype, _sizes(tokens=36, d_model=40, d_ff=72), sites=(2, 4), label="pipeline", microbatches=3)
      for dtype in ("f32", "f16")),
    Case("llama_block", "f16", _UNEVEN_BLOCK, sites=ALL_SITES, label="reproducible", reproducible=True),
    Case("llama_block", "f32", _UNEVEN_BLOCK, sites=(1, 3, 8), label="reproducible", reproducible=True),
    Case("llama_decode", "bf16", preset="tiny", sites=(1, 3, 8), label="reproducible", reproducible=True),
    *(Case("ffn", dtype, _sizes(tokens=512, d_model=768, d_ff=2048), slow=True) for dtype in ("f16", "f32", "bf16")),
    *(Case(f"chain_{letter}", "f16", _sizes(scale=16), slow=True) for letter in "abcde"),
    *(Case("ffn", dtype, _sizes(tokens=37, d_model=29, d_ff=53), label="odd") for dtype in ("f32", "f16", "bf16")),
    *(Case(f"chain_{letter}", "f32", _sizes(scale=300), label="odd") for letter in "abcde"),
    *(Case(name, dtype, sites=SITES if dtype == "f32" else (1, 4))
      for name in TEXTS for dtype in ("f32", "f16", "bf16")),
    Case("bert", "f32", preset="tiny"),
    Case("bert", "f16", preset="tiny", sites=(1, 4)),
    Case("digits", None),
)  # fmt: skip
"""What the benchmarks need comes first, should the time run out or the GPU be lost."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A model at full size in 16 bits, against PyTorch and JAX.

    `small` are the sizes at which it is rehearsed. `aim` is for 8 sites on one GPU, relative to one, and `most_ms` for
    one site. Not all are run with `many` sites, or have a model in JAX.
    """

    name: str
    title: str
    model: str
    definitions: Definitions
    small: Definitions
    aim: float | None = None
    most_ms: float | None = None
    many: bool = True
    dtype: str = "f16"

    def text(self) -> str:
        return (MODELS / f"{self.model}.ein").read_text()


def _block(tokens: int) -> Benchmark:
    title, aim = f"LLaMA block, {tokens // 1024}K tokens", 1.15 if tokens >= 8192 else None
    small = _sizes(seq_lens=[tokens // 512], d_model=64, heads_q=8, heads_kv=4, d_head=8, d_ff=112)
    full, most_ms = _sizes(seq_lens=[tokens]), 6.2 if tokens == 8192 else None
    return Benchmark(f"block{tokens // 1024}k", title, "llama_block", full, small, aim, most_ms)


def _chain(letter: str) -> Benchmark:
    return Benchmark(f"chain_{letter}", f"matrix chain {letter.upper()}", f"chain_{letter}", (), _sizes(scale=150))


def _decode(batch: int) -> Benchmark:
    small = _sizes(
        n_layers=2, batch=batch, cache=16, d_model=64, heads_q=8, heads_kv=4, d_head=16, d_ff=112, vocab=96
    )  # fmt: skip
    title = f"LLaMA 8B, one token of {batch} sequence{'s' if batch > 1 else ''}"
    full = _sizes(batch=batch)
    return Benchmark(f"decode{batch}", title, "llama_decode", full, small, many=False, dtype="bf16")


BENCHMARKS: tuple[Benchmark, ...] = (
    _block(8192),
    _block(1024),
    _chain("a"),
    _chain("c"),
    _block(32768),
    _chain("b"),
    _decode(1),
    _decode(8),
)
"""In the order of their importance, should the time run out."""

MAX_RATIO = 1.00
"""One site, relative to the best competitor."""
MIN_RATIO = 0.9
"""Of the speed that cuBLASLt's proposals, and libraries for attention, reach alone."""
MAX_HOST_US = 50.0
