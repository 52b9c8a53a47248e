"""Reads the measured times that the package `aiconfigurator-core` brings into arrays, one element a shape.

The truth is the least time over frameworks and versions, in microseconds, under these rules, each counted:

- products: a measurement is *warm* if its operands cannot have come from memory in its time (less the least time of the
  table) at the memory's peak rate; the least is over the others. One collection that reuses its weights is left out
  (`WARM_COLLECTIONS`).
- products: a shape is *dominated* if a product no smaller in any dimension took less than 1/1.25 of its time; it is
  dropped, for it shows a bad choice of the library or noise.
- experts: a shape is warm if the weights of the active experts cannot have come at the memory's peak rate; it is
  dropped.
- attention and experts: only shapes that two collections (experts: two frameworks) measured, for the kernels of the
  frameworks differ.
- experts: without the tables of experts that have no gate.
"""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from einc.machines.catalogue import load_catalogue

WARM_COLLECTIONS = {("h100-sxm", "sglang/0.5.6.post2")}
DOMINATED = 1.25
POWER_LAW_BUCKETS = 8

ELEMENT = "bfloat16"
ELEMENT_BYTES = 2.0
EIGHT_BITS = "fp8"
"""Products of floats of 8 bits with one scale for a tensor, and results of 16 bits."""
FOLDERS = {"rtx-pro-6000": "rtx_pro_6000_server"}
"""Where a GPU's tables are, if not in the folder of its name."""


@dataclass(frozen=True)
class Measured:
    """Shapes and their truth."""

    sizes: dict[str, np.ndarray]
    us: np.ndarray
    counts: dict[str, int]
    """Shapes in the tables, and how many were dropped by each rule."""
    keys: tuple[str, ...]
    """The sizes that tell a shape, for the split into fitted and held out."""

    def chosen(self, selection: np.ndarray) -> Measured:
        return Measured({k: v[selection] for k, v in self.sizes.items()}, self.us[selection], self.counts, self.keys)


def read(
    root: Path, gpu: str, operation: str, columns: tuple[str, ...], texts: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """All tables of a GPU and an operation, one under the other. Columns that a table lacks are zero."""
    import pyarrow as pa  # not among what the tests need, which use all but the tables
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parts = []
    folder = FOLDERS.get(gpu, gpu.replace("-", "_"))
    for file in sorted(root.glob(f"{folder}/*/*/*/{operation}_perf.parquet")):
        table = pq.read_table(file)
        part = {
            name: pc.cast(table[name], pa.int64())
            if name in table.column_names
            else pa.array(np.zeros(table.num_rows, np.int64))
            for name in columns
        }
        part |= {name: pc.cast(table[name], pa.string()) for name in texts}
        part["us"] = pc.multiply(pc.cast(table["latency"], pa.float64()), 1e3)
        part["source"] = pa.array(["/".join(file.parts[-3:-1])] * table.num_rows)
        parts.append(pa.table(part))
    if not parts:
        raise SystemExit(f"aiconfigurator-core has no table of {operation} for {gpu}: expected {root}/{folder}")
    joined = pa.concat_tables(parts)
    result = {name: joined[name].to_numpy() for name in (*columns, "us")}
    for name in (*texts, "source"):
        coded = joined[name].combine_chunks().dictionary_encode()
        result[name] = np.array(coded.dictionary.to_pylist(), dtype=object)[coded.indices.to_numpy()]
    return result


def least(
    rows: dict[str, np.ndarray], keys: tuple[str, ...], groups: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Distinct shapes, the least time of each, and in how many of the groups it occurs."""
    shapes, group_of = np.unique(np.stack([rows[k] for k in keys], 1), axis=0, return_inverse=True)
    group_of = group_of.ravel()
    us = np.full(len(shapes), np.inf)
    np.minimum.at(us, group_of, rows["us"])
    occurs = np.zeros(len(shapes), int)
    for group in np.unique(groups.astype(str)):
        seen = np.zeros(len(shapes), bool)
        seen[group_of[groups == group]] = True
        occurs += seen
    return {k: shapes[:, i].astype(float) for i, k in enumerate(keys)}, us, occurs


def choose(rows: dict[str, np.ndarray], selection: np.ndarray) -> dict[str, np.ndarray]:
    return {k: v[selection] for k, v in rows.items()}


def dominated(sizes: list[np.ndarray], us: np.ndarray) -> np.ndarray:
    """Which shapes took more than `DOMINATED` times as long as one that is no smaller in any size."""
    grids, places = zip(*(np.unique(s, return_inverse=True) for s in sizes), strict=True)
    block = np.full([len(g) for g in grids], np.inf)
    block[places] = us
    for axis in range(block.ndim):
        block = np.flip(np.minimum.accumulate(np.flip(block, axis), axis), axis)
    return us > DOMINATED * block[places]


def read_products(
    root: Path, gpu: str, memory_tbs: float, element: str = ELEMENT, width: float = ELEMENT_BYTES
) -> Measured:
    """Products whose operands have so many bytes an element."""
    rows = read(root, gpu, "gemm", ("m", "n", "k"), ("gemm_dtype",))
    rows = choose(rows, rows["gemm_dtype"] == element)
    rows = choose(rows, np.array([(gpu, source) not in WARM_COLLECTIONS for source in rows["source"]]))
    m, n, k = rows["m"], rows["n"], rows["k"]
    moved = width * (m * k + n * k) + ELEMENT_BYTES * m * n
    warm = (moved > 1e6) & (moved / memory_tbs * 1e-6 > 1.05 * (rows["us"] - rows["us"].min()) + 0.2)
    keys = ("m", "n", "k")
    everything, _, _ = least(rows, keys, rows["source"])
    rows = choose(rows, ~warm)
    sizes, us, _ = least(rows, keys, rows["source"])
    bad = dominated([sizes[k] for k in keys], us)
    counts = {"shapes": len(everything["m"]), "warm": len(everything["m"]) - len(us), "dominated": int(bad.sum())}
    named = {"rows": sizes["m"], "columns": sizes["n"], "inner": sizes["k"], "width": np.full(len(us), width)}
    return Measured(named, us, counts, ("rows", "columns", "inner")).chosen(~bad)


ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step", "window_size")


HEAD_SIZES = (64, 128, 192, 256)


def read_attention(root: Path, gpu: str, decode: bool) -> Measured:
    operation = "generation_attention" if decode else "context_attention"
    rows = read(root, gpu, operation, ATTENTION, ("attn_dtype", "kv_cache_dtype"))
    is_half = (rows["attn_dtype"] == ELEMENT) & (rows["kv_cache_dtype"] == ELEMENT)
    rows = choose(rows, is_half & np.isin(rows["head_dim"], HEAD_SIZES) & (rows["window_size"] == 0))
    s, us, occurs = least(rows, ATTENTION, rows["source"])
    sizes = {
        "sequences": s["batch_size"],
        "heads": s["num_heads"],
        "key_heads": s["num_key_value_heads"],
        "head_size": s["head_dim"],
        "window": s["window_size"],
    }
    sizes |= {"keys": s["step"] + 1} if decode else {"queries": s["isl"]}
    counts = {"shapes": len(us), "one collection": int((occurs < 2).sum())}
    return Measured(sizes, us, counts, tuple(sizes)).chosen(occurs >= 2)


EXPERTS = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "hundredths")


def read_experts(root: Path, gpu: str, memory_tbs: float) -> Measured:
    rows = read(root, gpu, "moe", EXPERTS[:-1], ("moe_dtype", "distribution", "kernel_source"))
    gate = np.array(["nongated" not in source for source in rows["kernel_source"]])
    rows = choose(rows, gate & (rows["moe_dtype"] == ELEMENT))
    spread = rows["distribution"]
    rows["hundredths"] = np.array([0 if d == "balanced" else round(100 * float(d.rsplit("_", 1)[1])) for d in spread])
    s, us, occurs = least(rows, EXPERTS, np.array([source.split("/")[0] for source in rows["source"]], dtype=object))
    counts = {"shapes": len(us), "one framework": int((occurs < 2).sum())}
    enough = occurs >= 2
    s, us = {k: v[enough] for k, v in s.items()}, us[enough]
    each, count = expert_rows(s)
    inner = np.ceil(s["inter_size"] / s["moe_tp_size"])
    weights = count.sum(1) * 3.0 * s["hidden_size"] * inner * ELEMENT_BYTES
    warm = (weights > 1e6) & (weights / memory_tbs * 1e-6 > 1.15 * us)
    counts["warm"] = int(warm.sum())
    s, us, each, count = {k: v[~warm] for k, v in s.items()}, us[~warm], each[~warm], count[~warm]
    sizes = dict(s) | {
        "each": each,
        "count": count,
        "hidden": s["hidden_size"],
        "inner": np.ceil(s["inter_size"] / s["moe_tp_size"]),
        "routed": s["num_tokens"] * s["topk"],
    }
    return Measured(sizes, us, counts, EXPERTS)


def expert_rows(s: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of an expert, and how many local experts have so many, in a few buckets; balanced or by a power law.

    By a power law the measured GPU holds the busiest expert. The rows of an expert are the quantiles of a power law
    between 1 and 0.8 of the tokens, scaled to the sum and limited to the tokens.
    """
    tokens, topk, number, parts, law = (
        s[k] for k in ("num_tokens", "topk", "num_experts", "moe_ep_size", "hundredths")
    )
    local = np.maximum(number / parts, 1.0)
    each, count = np.zeros((len(tokens), POWER_LAW_BUCKETS)), np.zeros((len(tokens), POWER_LAW_BUCKETS))
    balanced = law == 0
    active = np.minimum(local, np.maximum(1.0, np.round(tokens * topk / parts)))
    each[balanced, 0] = (np.maximum(tokens * topk / parts, 1.0) / active)[balanced]
    count[balanced, 0] = active[balanced]
    for hundredths, experts_number, held in {t for t in zip(law, number, local, strict=True) if t[0] > 0}:
        positions = np.where((law == hundredths) & (number == experts_number) & (local == held))[0]
        power = 1.0 - hundredths / 100.0
        quantile = (np.arange(int(experts_number)) + 0.5) / experts_number
        top = np.maximum(tokens[positions] * 0.8, 1.0001)[:, None]
        load = ((top**power - 1.0) * quantile + 1.0) ** (1.0 / power)
        load = load / load.sum(1, keepdims=True) * (tokens[positions] * topk[positions])[:, None]
        load = np.minimum(load, tokens[positions][:, None])
        held = int(held)
        if held == 1:
            load = load[:, -1:]
        elif held < experts_number:
            load = load[
                :, np.unique(np.round(np.linspace(experts_number / (2 * held), experts_number - 1, held)).astype(int))
            ]
        n = load.shape[1]
        edges = sorted({0, n, *np.round(n * (1.0 - 2.0 ** -np.arange(POWER_LAW_BUCKETS))).astype(int).tolist()})[
            -POWER_LAW_BUCKETS - 1 :
        ]
        edges[0] = 0
        for b, (first, last) in enumerate(itertools.pairwise(edges)):
            part = load[:, first:last]
            busy = np.minimum(part, 1.0).sum(1)  # an expert with less than one row is idle that part of the time
            count[positions, b] = busy
            each[positions, b] = part.sum(1) / np.maximum(busy, 1e-9)
    return each, count


def find_tables() -> Path:
    """The folder of the tables in the installed package."""
    package = importlib.util.find_spec("aiconfigurator_core")
    if package is None or package.origin is None:
        raise SystemExit("aiconfigurator-core is not installed: make .venv/truth installs it")
    return Path(package.origin).parent / "systems" / "data"


def read_shapes(kind: str, gpu: str, root: Path) -> Measured:
    """The shapes of a kind of kernels, and their truth."""
    memory_tbs = load_catalogue()[gpu].memory_gbs * 1e-3
    if kind == "products":
        return read_products(root, gpu, memory_tbs)
    if kind == "products of 8 bits":
        return read_products(root, gpu, memory_tbs, EIGHT_BITS, 1.0)
    if kind == "experts":
        return read_experts(root, gpu, memory_tbs)
    return read_attention(root, gpu, kind == "decode")


def held_out(measured: Measured, share: float = 0.2) -> np.ndarray:
    """Which shapes are held out, by a hash of their sizes."""
    mixed = np.full(len(measured.us), 1469598103934665603, np.uint64)
    with np.errstate(over="ignore"):
        for key in measured.keys:
            mixed = (mixed ^ measured.sizes[key].astype(np.uint64)) * np.uint64(1099511628211)
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(32)
    return (mixed >> np.uint64(11)).astype(float) / 2.0**53 >= 1.0 - share
