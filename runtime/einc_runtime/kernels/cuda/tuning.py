"""Which algorithm multiplies each product of a plan: measured once on a GPU, and kept in a file beside the plan.

A choice holds for one product (its shape, types, leading dimensions and the alignment of its operands), or for two and
the map of both, on one kind of GPU with one version of cuBLASLt. Anywhere else the library's own proposal is used, as
without a file. A choice names one algorithm of cuBLASLt, or a tile of our own kernel with the version of its compiler,
so that results have the same bits whenever it is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from einc_runtime.errors import ReadFault
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT
from einc_runtime.kernels.triton.gated_pair import GatedPair
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.product import ProductTile
from einc_runtime.strict_json import describe_json, parse_json

TUNING_SUFFIX = ".tuning.json"
MAX_TUNING_BYTES = 16 << 20
ALGORITHM_BYTES = 64
"""The size of cublasLtMatmulAlgo_t, which describes itself and may be written to a file."""

_TUNING_VERSION = 1
"""Of the file that `einc tune` writes; another one is refused."""


@dataclass(frozen=True, slots=True)
class TunedProduct:
    """The fastest way to compute a product: an algorithm of cuBLASLt, the text of one of our own (`name_kernel`), or
    b"" for what is used without tuning.

    `ms` is its time, and `usual_ms` the time without tuning.
    """

    algorithm: bytes | str
    ms: float
    usual_ms: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Choices for one kind of GPU and one version of cuBLASLt, by `name_product`."""

    gpu: str
    library: str
    choices: Mapping[str, TunedProduct] = field(default_factory=dict)


def name_product(product: Gemm) -> str:
    """What the time of a product depends on, and what an algorithm may require."""
    p = product
    aligned = " ".join(str(find_alignment(address)) for address in (p.a, p.b, p.addend or p.c, p.c, p.bias))
    strides = f"{p.stride_a} {p.stride_b} {p.stride_c}" if p.batch > 1 else "0"
    return f"{p.variant}, leading {p.lda} {p.ldb} {p.ldc}, strides {strides}, aligned {aligned}"


def name_gated_pair(pair: GatedPair) -> str:
    """The same for two products and the map of both."""
    left, right = pair.products
    return f"gated {pair.program}: {name_product(left)} and {name_product(right)}"


def name_kernel(tile: ProductTile, compiler: str) -> str:
    """The text that stands for our own kernel with this tile, such as `128x256x64 w8 s3, triton 3.9.0`."""
    return f"{tile.name}, {compiler}"


def find_alignment(address: int) -> int:
    """The largest power of two that divides an address, up to WORKSPACE_ALIGNMENT."""
    return min(address & -address, WORKSPACE_ALIGNMENT) if address else WORKSPACE_ALIGNMENT


def find_tuning(tunings: Sequence[Tuning], gpu: str, library: str) -> Tuning | None:
    """The choices for this GPU and version, if there are any."""
    return next((tuning for tuning in tunings if (tuning.gpu, tuning.library) == (gpu, library)), None)


def merge_tunings(known: Sequence[Tuning], new: Sequence[Tuning]) -> tuple[Tuning, ...]:
    """Both, in a fixed order; of choices for one product, the new one counts."""
    merged = {(tuning.gpu, tuning.library): tuning for tuning in known}
    for tuning in new:
        key = tuning.gpu, tuning.library
        before = merged[key].choices if key in merged else {}
        merged[key] = replace(tuning, choices={**before, **tuning.choices})
    return tuple(merged[key] for key in sorted(merged))


def encode_tunings(tunings: Sequence[Tuning]) -> str:
    """The text of a file."""
    records = [
        {
            "gpu": tuning.gpu,
            "library": tuning.library,
            "products": [
                {
                    "product": name,
                    **_encode_algorithm(product.algorithm),
                    "ms": product.ms,
                    "usual_ms": product.usual_ms,
                }
                for name, product in sorted(tuning.choices.items())
            ],
        }
        for tuning in tunings
    ]
    return json.dumps({"version": _TUNING_VERSION, "tunings": records}, indent=1) + "\n"


def _encode_algorithm(algorithm: bytes | str) -> dict[str, str]:
    if isinstance(algorithm, str):
        return {"algorithm": "", "kernel": algorithm}
    return {"algorithm": algorithm.hex()}


def read_tunings(path: Path) -> tuple[Tuning, ...]:
    """The choices in a file; none where there is no file. Raises ReadFault for anything else."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TUNING_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ReadFault(f"cannot read: {error.strerror}", where=str(path)) from None
    hint = "tune the plan again, or remove the file"
    if len(content) > MAX_TUNING_BYTES:
        raise ReadFault(f"it has more than {MAX_TUNING_BYTES >> 20} MiB", where=str(path), hint=hint)
    try:
        return _decode(parse_json(content))
    except ValueError as error:
        raise ReadFault(f"no tuning of a plan: {error}", where=str(path), hint=hint) from None


def _decode(document: object) -> tuple[Tuning, ...]:
    table = _object(document, {"version", "tunings"})
    if table["version"] != _TUNING_VERSION:
        raise ValueError(f"version {describe_json(table['version'])}, expected {_TUNING_VERSION}")
    return tuple(_decode_tuning(_object(entry, {"gpu", "library", "products"})) for entry in _list(table["tunings"]))


def _decode_tuning(table: Mapping[str, Any]) -> Tuning:
    choices: dict[str, TunedProduct] = {}
    for entry in _list(table["products"]):
        with_kernel = {"kernel"} if isinstance(entry, dict) and "kernel" in entry else set()
        product = _object(entry, {"product", "algorithm", "ms", "usual_ms", *with_kernel})
        choices[_text(product["product"])] = TunedProduct(
            _decode_algorithm(product), _number(product["ms"]), _number(product["usual_ms"])
        )
    return Tuning(_text(table["gpu"]), _text(table["library"]), choices)


def _decode_algorithm(table: Mapping[str, Any]) -> bytes | str:
    algorithm, kernel = bytes.fromhex(_text(table["algorithm"])), _text(table.get("kernel", ""))
    if kernel and algorithm:
        raise ValueError("an algorithm and a kernel for one product, expected one of them")
    if len(algorithm) not in (0, ALGORITHM_BYTES):
        raise ValueError(f"an algorithm of {len(algorithm)} bytes, expected {ALGORITHM_BYTES}")
    return kernel or algorithm


def _object(value: object, names: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"{describe_json(value)}, expected an object of {', '.join(sorted(names))}")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{describe_json(value)}, expected a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{describe_json(value)}, expected a text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{describe_json(value)}, expected a time")
    return float(value)
