"""Results as shards of a safetensors set, read back by the safetensors library: whole, and the bits of one process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from einc_runtime.cli.arrays import write_shards
from einc_runtime.cli.ranks import World
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.ranks.cpu_part import make_cpu_executor
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Bundle
from tests.support.compiled_plans import EVERYTHING, compiled
from tests.support.plan_arrays import arrays_of, results
from tests.support.thread_links import ThreadLinks, ThreadWorld


def read_back(target: Path, bundle: Bundle) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs, put together by the names of their blocks; the library reads the files."""
    index = json.loads(Path(f"{target}.index.json").read_text())
    tensors = {bundle.tensors[out.tensor].name: bundle.tensors[out.tensor] for out in bundle.outputs}
    kinds: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "bool": np.bool_}
    joined = {name: np.zeros(tensor.shape, kinds[tensor.dtype]) for name, tensor in tensors.items()}
    counts = {name: np.zeros(tensor.shape, np.int64) for name, tensor in tensors.items()}
    size = 0
    for block, file in index["weight_map"].items():
        with safe_open(target.parent / file, "numpy") as opened:
            values = opened.get_tensor(block)
        name, _, ends = block.partition("[")
        where = tuple(slice(int(low), int(up)) for low, up in re.findall(r"(\d+):(\d+)", ends)) or ...
        joined[name][where] = values
        counts[name][where] += 1
        size += values.nbytes
    assert index["metadata"]["total_size"] == size
    assert all((count == 1).all() for count in counts.values())
    return joined


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_rank_writes_what_it_has_and_no_more(tmp_path: Path, dtype: str) -> None:
    bundle = compiled(EVERYTHING, 5, dtype)
    arrays = arrays_of(bundle)
    expected = results(Session(bundle, executor=CpuExecutor(bundle, 2)), arrays)
    target = tmp_path / "out.safetensors"

    def run(links: ThreadLinks) -> int:
        executor = make_cpu_executor(bundle, links, 1, total=2)  # type: ignore[arg-type]
        session = Session(bundle, executor=executor)
        for name, array in arrays.items():
            session.load(name, array)
        session.execute()
        before = len(links.world.sent)
        write_shards(str(target), session, World(links, None, lambda _: None))  # type: ignore[arg-type]
        return len(links.world.sent) - before

    assert ThreadWorld(3).run(run) == [0, 0, 0]  # nothing is sent
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *[f"out-0000{number}-of-00003.safetensors" for number in (1, 2, 3)],
        "out.safetensors.index.json",
    ]
    joined = read_back(target, bundle)
    assert joined.keys() == expected.keys()
    for name, array in expected.items():
        assert joined[name].tobytes() == array.tobytes(), name
