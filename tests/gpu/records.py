"""What workers of `make gpu-check` tell, as its tests make it up: a case that holds, and a benchmark."""

from __future__ import annotations


def record(case="ffn f16", **changed):
    usual = {"sites": 1, "error": 1e-3, "torch_error": 2e-3, "tolerance": 1e-2, "same_bits": True, "problem": ""}
    return {"case": case, "kernels": ("contract: cublas", "map: triton"), "seconds": 0.1, **usual, **changed}


def timing(name="block8k", ours=1.0, many=1.1, error=1e-3, **problems):
    return {
        "name": name,
        "ms": {"einc": ours, "einc, 8 sites": many, "torch eager": 1.2, "torch compiled, CUDA graph": 1.0},
        "samples": {"einc": [0.99, 1.0, 1.02]},
        "problems": problems,
        "errors": {"einc": error, "einc, 8 sites": error},
        "host_us": {"einc": 9.0, "einc, 8 sites": 61.0},
        "kernels": ["einc: 7 contract by cublas"],
        "notes": {},
        "complete": True,
    }
