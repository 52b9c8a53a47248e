"""One competitor in a process of its own: makes itself ready, stores its result, and runs once per line it is sent.

    python -m tests.bench.worker COMPETITOR PLAN RESULT THREADS REPEATS [FOLDER]

It says `ready`, the megabytes that it holds and the seconds until its first result, or `absent` and what is not
installed, then the milliseconds of every run: the least of REPEATS.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Run = Callable[[], object]
LIMITS = {
    "x86-64-v2": ("SSE41", "default", "SSE4_2", "Nehalem"),
    "x86-64-v3": ("AVX2", "avx2", "AVX2", "Haswell"),
    "x86-64-v4": ("AVX512_CORE", "avx512", "AVX512", "SkylakeX"),
    "x86-64-v4-bf16": ("AVX512_CORE_BF16", "avx512", "AVX512_E2", "Cooperlake"),
}
"""What oneDNN, PyTorch, MKL and OpenBLAS call a level that einc is held to; at higher ones nobody is held back."""
UNHELD = {"jax": "JAX", "onnxruntime": "ONNX Runtime"}
"""Nothing holds these to a level: products of JAX use instructions that `--xla_cpu_max_isa` forbids."""


def main(competitor: str, plan: str, result: str, threads: str, repeats: str, folder: str = "") -> None:
    kind = competitor.split()[0]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    flags = ["--xla_force_host_platform_device_count=8"] if kind == "jax8" else []
    level = os.environ.get("EINC_PROCESSOR", "")
    if level in LIMITS:
        unheld = next((name for start, name in UNHELD.items() if kind.startswith(start)), "")
        if unheld:
            print(f"absent {unheld} cannot be held to {level}", flush=True)
            return
        onednn, aten, mkl, openblas = LIMITS[level]
        os.environ |= {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": aten}
        os.environ |= {"MKL_ENABLE_INSTRUCTIONS": mkl, "OPENBLAS_CORETYPE": openblas}
        # PyTorch compiles headers beforehand, and would use those of another level in its usual folder
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir(), f"torchinductor-{level}"))
    if kind.startswith("jax"):
        os.environ |= {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    if kind in ("numpy", "onednn", "torch", "transformers"):
        os.environ |= {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        prepare = _competitor(kind, competitor, plan, folder, int(threads))
        start = time.perf_counter()
        run, fetch = prepare()
    except ImportError as error:
        print(f"absent {error.name} is not installed", flush=True)
        return
    run()
    first = time.perf_counter() - start
    import numpy as np

    np.save(result, np.asarray(fetch(), np.float32))
    for _ in range(2):
        run()
    print(f"ready {_resident_megabytes():.0f} {first:.3f}", flush=True)
    for _ in sys.stdin:
        print(min(_time(run) for _ in range(int(repeats))), flush=True)


def _time(run: Run) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def _resident_megabytes() -> float:
    """The process's own memory now, without what it maps from files; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:"))


def _competitor(kind: str, competitor: str, plan: str, folder: str, threads: int) -> Callable[[], tuple[Run, Run]]:
    """Makes a competitor ready; then there is what runs it once, and what gives its result."""
    from einc_runtime.plan.codec import read_bundle

    bundle = read_bundle(plan)
    if kind == "einc":
        from tests.bench import with_einc

        if competitor.endswith("without onednn"):
            with_einc.hide_onednn()
        return lambda: with_einc.prepared(bundle, folder)
    if kind == "torch":
        from tests.bench import with_torch

        return lambda: with_torch.prepared(bundle, folder, threads, compiled="compiled" in competitor)
    if kind in ("onnxruntime", "openvino"):
        from tests.bench import with_onnx

        model = with_onnx.write_model(bundle, plan, folder)
        return lambda: with_onnx.prepared(kind, bundle, model, folder, threads)
    if kind == "llama.cpp":
        from tests.bench import with_llama

        flash = "flash" in competitor
        files = with_llama.write_model(bundle, plan, threads, flash=flash)
        return lambda: with_llama.prepared(bundle, *files, threads, flash=flash)
    if kind == "transformers":
        from tests.bench import with_transformers

        return lambda: with_transformers.prepared(bundle, threads)
    if kind == "reading":
        from tests.bench import reading

        return lambda: reading.prepared(bundle, threads)
    if kind == "multiplying":
        from tests.bench import multiplying

        return lambda: multiplying.prepared(bundle, threads)
    if kind == "onednn":
        from tests.bench import with_onednn

        return lambda: with_onednn.prepared(bundle, threads)
    if kind == "numpy":
        from tests.bench import with_numpy

        return lambda: with_numpy.prepared(bundle)
    from tests.bench import with_jax

    return lambda: with_jax.prepared(bundle, competitor.split()[1:], devices=8 if kind == "jax8" else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
