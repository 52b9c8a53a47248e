"""Steps of models that other people measured and published, with the cut and the element type that they state."""

from __future__ import annotations

from dataclasses import dataclass

from tests.truth.cases import DECODE, PREFILL, Step


@dataclass(frozen=True, slots=True)
class Published:
    """A step, the milliseconds that it was measured to take, and where that is written. All are cut as Megatron does.

    `length` of the step is the most that the caches hold: a step over fewer places takes as long or a little less.
    """

    step: Step
    ms: float
    source: str


GPT_FAST = "gpt-fast, README, commit 258ae2e"
VLLM = "vLLM's performance benchmark, build 9515"
TENSORRT = "TensorRT-LLM 0.5, performance.md"
VLLM_A100 = "johnmusgrave.com, vLLM 0.23 on A100 40GB"

NOTES = {
    GPT_FAST: "bf16, torch.compile, prompts of 5 tokens and 200 new ones; 8 A100 of 80 GB that are limited to 330 W, "
    "joined by a hybrid cube mesh and not by switches; all-reduces of one kernel. Its tokens a second are of whole "
    "texts, the host's work between steps included",
    VLLM: "bf16, 32 tokens in, 128 out, 8 sequences; the whole time over 128 steps, so that the first "
    "one counts as a step",
    TENSORRT: "f16, the time to the first token of one prompt",
    VLLM_A100: "bf16, 1024 tokens in, 128 out, one sequence, and the host's work between steps",
}
"""What was measured, and how."""


def _gpt_fast(model: str, rates: dict[int, float]) -> list[Published]:
    return [
        Published(Step(model, "a100_sxm", gpus, DECODE, 1, 256), round(1000 / rate, 2), GPT_FAST)
        for gpus, rate in rates.items()
    ]


PUBLISHED = (
    *_gpt_fast("llama-3.1-8b", {1: 93.83, 2: 149.10, 4: 217.21, 8: 276.01}),
    *_gpt_fast("llama-3.1-70b", {2: 16.03, 4: 37.45, 8: 58.78}),
    *_gpt_fast("llama-2-7b", {1: 104.9, 2: 168.84, 4: 254.02, 8: 328.43}),
    *_gpt_fast("llama-2-70b", {2: 21.32, 4: 38.01, 8: 62.50}),
    Published(Step("llama-3.1-8b", "h200_sxm", 1, DECODE, 8, 128), 6.51, VLLM),
    Published(Step("llama-3.1-70b", "h200_sxm", 4, DECODE, 8, 128), 16.23, VLLM),
    Published(Step("llama-3.1-8b", "a100_40gb", 1, DECODE, 1, 1152), 13.3, VLLM_A100),
    Published(Step("llama-2-7b", "a100_sxm", 1, PREFILL, 1, 128), 16.0, TENSORRT),
    Published(Step("llama-2-7b", "a100_sxm", 1, PREFILL, 1, 2048), 133.0, TENSORRT),
    Published(Step("llama-2-70b", "a100_sxm", 4, PREFILL, 1, 128), 47.0, TENSORRT),
    Published(Step("llama-2-70b", "a100_sxm", 4, PREFILL, 1, 2048), 377.0, TENSORRT),
)
