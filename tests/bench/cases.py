"""What is measured: models, sizes, and who competes. Sizes are those that the paper's figures have at 1/8 scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.bench.operators import OPERATORS

MODELS = Path(__file__).resolve().parents[2] / "models"
EINC = "einc"
EIGHT = "einc 8"
"""The plan for eight sites, where the other one has a single site."""
MULTIPLYING = "multiplying"
"""Multiplies and adds as often as products and attention do, in registers, as fast as two threads can."""
MINILM = "all-MiniLM-L6-v2"
MODULES = {
    "vit_b_16": "ViT-B/16, 8 images of 224 x 224",
    "resnet_50": "ResNet-50, 8 images of 224 x 224",
    "whisper_tiny": "Whisper tiny, 30 seconds of sound and 64 words",
}
"""Models of transformers in PyTorch, imported by `from_torch`."""

Definitions = tuple[tuple[str, str], ...]

BLOCK: Definitions = (("d_model", "1024"), ("heads_q", "16"), ("heads_kv", "4"), ("d_head", "64"), ("d_ff", "3584"))
JAX_BLOCK = ("jax8 tokens+ffn", "jax8 tokens+ffn dpa", "jax8 tokens dpa", "jax8 heads+ffn", "jax1", "jax1 dpa")
JAX_CHAIN = ("jax8 rows", "jax8 columns", "jax8 grid", "jax1")
TORCH = ("torch eager", "torch compiled")


@dataclass(frozen=True, slots=True)
class Case:
    """One model and those who compute it. A competitor's first word says what it is; `sites` and `dtype` are einc's,
    where its name says nothing else.

    A model is a file in `models`, or the text of a single operator. `repeats` is how often each runs in a round, of
    which the least time counts: what takes less than a millisecond else shows how long threads take to wake.
    `targets` are the most that einc's time may be, relative to the best of the competitors whose names begin so, and
    `limits` the most that the time of another plan of einc may be, relative to that of the first one. `stored` is how
    the model's text says that matrices are stored, where they are quantized.
    """

    name: str
    title: str
    model: str
    definitions: Definitions
    competitors: tuple[str, ...]
    targets: dict[str, float] = field(default_factory=dict)
    sites: int = 8
    dtype: str = "f32"
    tolerance: float = 1e-4
    stored: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    repeats: int = 1


def _chain(letter: str, targets: dict[str, float]) -> Case:
    return Case(
        f"chain_{letter}",
        f"matrix chain {letter.upper()} at 1/8 scale",
        f"chain_{letter}",
        (("scale", "8"),),
        (EINC, EIGHT, *JAX_CHAIN, *TORCH, "numpy", MULTIPLYING),
        {"jax": 0.9, "torch": 0.9} | targets,
        sites=1,
    )


def _block(tokens: int, competitors: tuple[str, ...], targets: dict[str, float], suffix: str = "", **more) -> Case:
    definitions = (*BLOCK, ("seq_lens", f"[{tokens}]"))
    return Case(
        f"block{tokens}{suffix}",
        f"LLaMA block, {tokens} tokens",
        "llama_block",
        definitions,
        competitors,
        targets,
        sites=1,
        **more,
    )


def _encoder(name: str, title: str, batch: str, tokens: str) -> Case:
    competitors = (EINC, *TORCH, "onnxruntime", "openvino", MULTIPLYING)
    targets = {"torch": 1.1, "onnxruntime": 0.9, "openvino": 0.9}
    return Case(
        name, f"{MINILM}, {title}", MINILM, (("batch", batch), ("tokens", tokens)), competitors, targets, sites=1
    )


def _mixture(tokens: int) -> Case:
    definitions = (("tokens", str(tokens)), ("d_model", "768"), ("d_ff", "2048"))
    title = f"mixture of 8 experts of 768 x 2048, {tokens} tokens"
    return Case(f"moe{tokens}", title, "moe", definitions, (EINC, EIGHT, TORCH[0]), {"torch": 1.0}, sites=1)


def _module(name: str) -> Case:
    peers = (TORCH[1], "onnxruntime", "openvino")
    return Case(name, MODULES[name], name, (), (EINC, *peers), {peer.split()[0]: 1.0 for peer in peers}, sites=1)


def _operator(name: str) -> Case:
    # PyTorch takes seconds for a selective scan, and has no operator for it
    repeats, most = (1, 1.2) if name == "selective_scan" else (5, 1.2 if name == "conv2d" else 1.1)
    peers = (*TORCH, "onednn") if name == "conv2d" else TORCH
    targets = {peer.split()[0]: most for peer in peers}
    return Case(name, OPERATORS[name].title, name, (), (EINC, *peers), targets, sites=1, repeats=repeats)


CASES = (
    *(_chain(letter, {"a": {"jax8": 0.75}}.get(letter, {})) for letter in "abcde"),
    _block(512, (EINC, EIGHT, *JAX_BLOCK, *TORCH, MULTIPLYING), {"jax": 0.9, "torch": 0.9}),
    _block(2048, (EINC, EIGHT, *JAX_BLOCK, *TORCH, MULTIPLYING), {"jax": 0.9, "jax8": 0.58, "torch": 0.9}),
    _block(2048, (EINC, "einc f32", *TORCH), {"einc f32": 1.1}, "bf16", dtype="bf16", tolerance=6e-2),
    _block(2048, (EINC, "einc f32", *TORCH), {"einc f32": 1.3}, "f16", dtype="f16", tolerance=1e-2),
    _encoder("minilm", "32 sentences of 128 tokens", "32", "128"),
    _encoder("sentence", "one sentence of 16 tokens", "1", "16"),
    Case("convnet", "residual network, 8 images of 56 x 56, 8 convolutions of 64 channels", "convnet",
         (("batch", "8"), ("stages", "4")), (EINC, EIGHT, *TORCH, "onnxruntime", "openvino"),
         {"torch": 1.0, "onnxruntime": 1.0, "openvino": 1.0}, sites=1),
    *(_mixture(tokens) for tokens in (8, 512)),
    *map(_operator, OPERATORS),
    *map(_module, MODULES),
)  # fmt: skip

LLAMA: Definitions = (
    ("n_layers", "12"), ("d_model", "768"), ("heads_q", "12"), ("heads_kv", "4"), ("d_head", "64"), ("d_ff", "2048"),
    ("vocab", "32000"),
)  # fmt: skip
"""125 million parameters."""
SMOL: Definitions = (
    ("n_layers", "30"), ("d_model", "576"), ("heads_q", "9"), ("heads_kv", "3"), ("d_head", "64"), ("d_ff", "1536"),
    ("vocab", "49152"),
)  # fmt: skip
"""134 million parameters, of which a step reads all. Its table is the head, too, and counts once."""
READING = "reading"
"""Reads as many bytes as a step does, as fast as two threads can, and computes nothing."""
UNROUNDED = "einc unrounded"
"""The same weights of 8 bits, multiplied with what they are multiplied with as it is."""
LLAMA_CPP = ("llama.cpp", "llama.cpp flash")
KINDS = {
    "f32": ("onnxruntime", "openvino", "transformers", *LLAMA_CPP),
    "bf16": ("openvino", "transformers", *LLAMA_CPP),
    "int8": LLAMA_CPP,
    "int4": LLAMA_CPP,
    "w8a8": (UNROUNDED, *LLAMA_CPP),
}
"""ONNX Runtime multiplies no bf16 on CPUs."""
STORED = {"int8": "i8(group=32)", "int4": "i4(group=32)", "w8a8": "i8(inputs=8)"}
TOLERANCES = {"f32": 1e-3, "bf16": 0.1, "int8": 0.1, "int4": 0.1, "w8a8": 0.1}


def _of_both(peers: tuple[str, ...]) -> tuple[str, ...]:
    """Those who run models from folders, as users of small models do."""
    return tuple(peer for peer in peers if peer.startswith(("transformers", "llama.cpp")))


def _llama(name: str, title: str, model: str, kind: str, sizes: Definitions, peers: tuple[str, ...]) -> Case:
    words = f", matrices as {STORED[kind]}" if kind in STORED else ""
    most = 0.85 if (name, kind) == ("prefillf32", "f32") else 1.0
    targets = {peer.split()[0]: most for peer in peers if not peer.startswith((EINC, READING, MULTIPLYING))}
    if READING in peers and kind == "f32":
        targets[READING] = 1.15
    if UNROUNDED in peers:
        targets[UNROUNDED] = 1.0
    dtype = "f32" if kind == "f32" else "bf16"
    stored, tolerance = STORED.get(kind, ""), TOLERANCES[kind]
    limits = {peer: 1.15 for peer in peers if peer.startswith(EINC) and peer != UNROUNDED}
    return Case(name, title + words, model, sizes, (EINC, *peers), targets, 1, dtype, tolerance, stored, limits)


PEER_CASES = tuple(
    case
    for kind, peers in KINDS.items()
    for case in (
        *(
            _llama(f"decode{batch}{kind}", f"LLaMA of 125M parameters, one step over a cache of 512, batch {batch}",
                   "llama_decode", kind, (*LLAMA, ("cache", "512"), ("batch", str(batch))),
                   (EIGHT, *peers, READING))
            for batch in (1, 8)
        ),
        _llama(f"prefill{kind}", "LLaMA of 125M parameters, a prompt of 512 tokens", "llama", kind,
               (*LLAMA, ("length", "512"), ("batch", "1")),
               (EIGHT, *peers, *([MULTIPLYING] if kind == "f32" else []))),
        _llama(f"smol-decode1{kind}", "LLaMA of 134M parameters, one step over a cache of 512", "llama_decode", kind,
               (*SMOL, ("cache", "512"), ("batch", "1")), (*_of_both(peers), READING)),
        _llama(f"smol-prefill{kind}", "LLaMA of 134M parameters, a prompt of 512 tokens", "llama", kind,
               (*SMOL, ("length", "512"), ("batch", "1")), _of_both(peers)),
    )
)  # fmt: skip

SITES = tuple(
    Case(f"sites-{case.name}", f"{case.title}, on p sites", case.model, case.definitions,
         ("einc 2", "einc 1", "einc 8", "einc 72"), {})
    for case in CASES if case.name in ("chain_a", "block512", "block2048")
)  # fmt: skip


EXTRAS = tuple(
    replace(case, name=f"extras-{case.name}", title=f"{case.title}, without oneDNN",
            competitors=(EINC, "einc without onednn"), targets={"einc without": 1.05})
    for case in CASES if case.name in ("chain_a", "block512", "block2048bf16", "minilm")
)  # fmt: skip
"""oneDNN makes no case more than 5 percent slower than it is without it."""


def sites_of(case: Case, competitor: str) -> int:
    """How many sites a competitor's plan has; what is no plan of ours reads its tensors from einc's."""
    words = competitor.split()
    return int(words[1]) if words[0] == EINC and len(words) > 1 and words[1].isdigit() else case.sites


def dtype_of(case: Case, competitor: str) -> str:
    words = competitor.split()
    named = words[0] == EINC and len(words) > 1 and not words[1].isdigit() and words[1] not in ("without", "unrounded")
    return words[1] if named else case.dtype
