"""Times of collectives that were measured with NCCL and in serving frameworks: all of those in the installed package
`aiconfigurator-core` (Apache-2.0), and those of them that are committed, in tests/truth/collectives.json.

NCCL's are those of nccl-tests: out of place, launched by the host call after call, the mean over 100 to 1000 calls. The
others are all-reduces of bf16 in a CUDA graph, its launch included.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.truth.forms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL

FILE = Path(__file__).with_name("collectives.json")
VERSIONS = {"a100_sxm": "2.27.3", "h100_sxm": "2.29.2", "b200_sxm": "2.29.2", "l40s": "2.27.3"}
"""The newest version of NCCL that each system was measured with."""
KERNELS = {
    ("a100_sxm", "vllm", "0.14.0"): "vLLM_custom_graph",
    ("a100_sxm", "sglang", "0.5.10"): "SGLang_CustomAllReduce_graph",
    ("a100_sxm", "trtllm", "1.0.0"): "TRTLLM",
    ("h100_sxm", "vllm", "0.24.0"): "vLLM_custom_graph",
    ("h100_sxm", "sglang", "0.5.10"): "SGLang_CustomAllReduce_graph",
    ("h100_sxm", "trtllm", "1.3.0rc20"): "TRTLLM",
    ("b200_sxm", "vllm", "0.24.0"): "vLLM_custom_graph",
    ("b200_sxm", "sglang", "0.5.14"): "SGLang_CustomAllReduce_graph",
    ("b200_sxm", "trtllm", "1.3.0rc20"): "TRTLLM",
    ("l40s", "vllm", "0.14.0"): "vLLM_custom_graph",
}
"""All-reduces in one kernel by system, framework and version: what the tables call them."""
KERNEL_LIMIT = {"vllm 0.14.0": 4 << 20, "vllm 0.24.0": 4 << 20, "sglang 0.5.10": 8 << 20, "sglang 0.5.14": 8 << 20,
                "trtllm 1.0.0": 1 << 20, "trtllm 1.3.0rc20": 4 << 20}  # fmt: skip
"""Larger buffers are left to NCCL: from there on, measured times are those of NCCL."""
MOVED_ALIKE = (ALL_GATHER, ALL_TO_ALL)
"""Nothing is added: halves and bytes of one size are two measurements of one thing."""
SMALLEST, LARGEST = 1 << 10, 512 << 20
INT8 = "int8"


@dataclass(frozen=True, order=True, slots=True)
class Measured:
    """A collective: `size` in bytes, `us` the median time of a call."""

    collective: str
    dtype: str
    gpus: int
    size: int
    us: float

    @property
    def title(self) -> str:
        return f"{self.collective}, {self.gpus} GPUs, {self.size} B"

    @property
    def is_held_out(self) -> bool:
        """Whether nothing is fitted to it: a fifth of all shapes, and both types of a shape, which are alike."""
        name = f"{self.collective} {self.gpus} {self.size}"
        return hashlib.sha256(name.encode()).digest()[0] % 5 == 0


def read_nccl(system: str) -> list[Measured]:
    """From the installed package, whose tables count elements."""
    times: defaultdict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for row in _read_table(system, "nccl", VERSIONS[system], "nccl_perf"):
        size = int(row["message_size"]) * (1 if row["nccl_dtype"] == INT8 else 2)
        times[row["op_name"], row["nccl_dtype"], int(row["num_gpus"]), size].append(row["latency"] * 1e3)
    return [Measured(*key, median(found)) for key, found in sorted(times.items())]


def read_kernel(system: str, framework: str, version: str) -> list[Measured]:
    """All-reduces of a framework in one kernel, from the installed package."""
    times: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for row in _read_table(system, framework, version, "custom_allreduce_perf"):
        gpus, size = int(row["num_gpus"]), 2 * int(row["message_size"])
        is_wanted = row["kernel_source"] == KERNELS[system, framework, version]
        if is_wanted and gpus <= 8 and size <= KERNEL_LIMIT[f"{framework} {version}"]:
            times[gpus, size].append(row["latency"] * 1e3)
    return [Measured(ALL_REDUCE, "half", *key, median(found)) for key, found in sorted(times.items())]


def write_file() -> None:
    """Commits the times of 16-bit floats from 1 KiB on, and those of bytes where they measure the same again."""
    tables = {f"{system} nccl {version}": read_nccl(system) for system, version in VERSIONS.items()}
    tables |= {" ".join(key): read_kernel(*key) for key in KERNELS}
    lines = []
    for name, rows in tables.items():
        series: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for row in _select(rows):
            series[f"{row.collective} {row.dtype} {row.gpus}"][str(row.size)] = round(row.us, 2)
        inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(times)}" for key, times in series.items())
        lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_file() -> dict[str, list[Measured]]:
    """The committed times by system, framework and version."""
    found = {}
    for name, series in json.loads(FILE.read_text(encoding="utf-8")).items():
        rows = []
        for key, times in series.items():
            collective, dtype, gpus = key.split()
            rows += [Measured(collective, dtype, int(gpus), int(size), us) for size, us in times.items()]
        found[name] = rows
    return found


def pair_repeated(rows: Iterable[Measured]) -> list[tuple[Measured, Measured]]:
    """The shapes that were measured twice: halves, and as many bytes."""
    rows = list(rows)
    again = {(row.collective, row.gpus, row.size): row for row in rows if row.dtype == INT8}
    firsts = [row for row in rows if row.dtype != INT8 and row.collective in MOVED_ALIKE]
    return [(row, again[row.collective, row.gpus, row.size]) for row in firsts]


def _select(rows: Iterable[Measured]) -> list[Measured]:
    return [
        row for row in rows if SMALLEST <= row.size <= LARGEST and (row.dtype != INT8 or row.collective in MOVED_ALIKE)
    ]


def _read_table(system: str, framework: str, version: str, table: str) -> list[dict[str, Any]]:
    parquet = importlib.import_module("pyarrow.parquet")
    package = importlib.import_module("aiconfigurator_core")
    folder = Path(str(package.__file__)).parent / "systems" / "data" / system / "comm" / framework / version
    rows: list[dict[str, Any]] = parquet.read_table(folder / f"{table}.parquet").to_pylist()
    return rows
