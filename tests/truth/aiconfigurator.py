"""What aiconfigurator predicts of the same steps: asks it, and writes tests/truth/aiconfigurator.json.

    make aiconfigurator

runs this in an environment of its own (build/aiconfigurator), as the package brings thirty others. It needs no network:
the shapes of the models are written into folders for it.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from tests.truth.cases import PREFILL, Step, list_steps
from tests.truth.models import CONFIGS, write_config
from tests.truth.published import PUBLISHED

FILE = Path(__file__).with_name("aiconfigurator.json")
FRAMEWORKS = ("trtllm", "vllm", "sglang")
"""The first one is what aiconfigurator takes if nothing is said."""


def ask(step: Step, folder: Path) -> dict[str, Any]:
    """The time in ms by the first framework whose kernels it knows on this system, and its parts by kernel."""
    from aiconfigurator.cli.api import cli_estimate

    experts = {"moe_tp_size": step.gpus, "moe_ep_size": 1} if "num_local_experts" in CONFIGS[step.model] else {}
    prefill = step.kind == PREFILL
    for framework in FRAMEWORKS:
        try:
            estimate = cli_estimate(
                str(folder / step.model), step.system, backend_name=framework,
                mode="static_ctx" if prefill else "static_gen", batch_size=step.batch,
                isl=step.length, osl=1 if prefill else 2, tp_size=step.gpus,
                gemm_quant_mode="bfloat16", kvcache_quant_mode="bfloat16", fmha_quant_mode="bfloat16",
                moe_quant_mode="bfloat16", comm_quant_mode="half", **experts,
            )  # fmt: skip
        except Exception as error:  # of another's library: the next framework is asked still
            print(f"{step.key}: {framework}: {str(error).splitlines()[0][:200]}", flush=True)
            continue
        summary: Any = estimate.summary
        parts = summary.get_context_latency_dict() if prefill else summary.get_generation_latency_dict()
        return {
            "ms": round(estimate.ttft if prefill else estimate.tpot, 3),
            "framework": f"{framework} {estimate.backend_version}",
            "parts": {name.split("_", 1)[1]: round(ms, 3) for name, ms in parts.items()},
        }
    return {}


def name_kind(part: str) -> str:
    """Which of einc's kinds of tasks (`planning.KINDS`) a part is."""
    if part == "attention":
        return "attention"
    if part.endswith("_gemm"):
        return "products"
    if part == "moe":
        return "experts"
    return "moving" if part.startswith(("ar_", "p2p", "moe_")) or part.endswith("_ar") else "other kernels"


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in CONFIGS:
            write_config(model, folder)
        found = {}
        for step in (*(each.step for each in PUBLISHED), *list_steps()):
            answer = ask(step, folder)
            if answer:
                found[step.key] = answer
                print(step.key, answer["ms"], answer["framework"], flush=True)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(answer)}" for key, answer in found.items())
    FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
