"""Which steps are predicted by einc and by aiconfigurator. Nothing here needs einc or aiconfigurator."""

from __future__ import annotations

from dataclasses import dataclass

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "mixtral-8x7b")
SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s")
"""As aiconfigurator calls them: A100 and H100 with 80 GB, H200 with 141, L40S with 48 on PCIe."""

DECODE, PREFILL = "decode", "prefill"


@dataclass(frozen=True, order=True, slots=True)
class Step:
    """A step of a model in bf16 on so many GPUs: a new token for each of `batch` sequences that have `length` tokens,
    or the reading of `batch` prompts of `length` tokens."""

    model: str
    system: str
    gpus: int
    kind: str
    batch: int
    length: int

    @property
    def key(self) -> str:
        return f"{self.model} {self.system} {self.gpus} {self.kind} {self.batch} {self.length}"


def list_steps() -> tuple[Step, ...]:
    """Decode steps of 8 sequences on 1 to 8 GPUs and a prompt on 1 and 8; a decode step of one sequence, and eight
    prompts, on some."""
    found = []
    for system in SYSTEMS:
        for model in MODELS:
            found += [Step(model, system, gpus, DECODE, 8, 8192) for gpus in (1, 2, 4, 8)]
            found += [Step(model, system, gpus, PREFILL, 1, 8192) for gpus in (1, 8)]
    found += [Step(model, "h100_sxm", gpus, DECODE, 1, 8192) for model in MODELS for gpus in (1, 8)]
    prompts = [("llama-3.1-70b", "h100_sxm"), ("llama-3.1-8b", "a100_sxm")]
    return (*found, *(Step(model, system, 8, PREFILL, 8, 8192) for model, system in prompts))
