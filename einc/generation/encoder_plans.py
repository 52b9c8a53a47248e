"""Which plans make vectors of texts with an encoder: one for each of a few lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from einc.generation.decoder_plans import LENGTHS, make_pins
from einc.generation.plan_cache import KeptPlan, PlanCache
from einc.importers import encoders
from einc.importers.common import ImportRequest
from einc.importers.config import parse_config
from einc.importers.hf import find_exported_family, import_hf
from einc.options import CompileOptions
from einc_runtime.generation.model_folder import Pooling


@dataclass(frozen=True, slots=True)
class EncoderSource:
    """An encoder to be imported: the bytes of its config.json, its name, and the names of its stored tensors."""

    config: bytes
    where: str
    name: str
    stored: frozenset[str] | None
    pooling: Pooling
    ignored: tuple[str, ...] = ()

    def write_model(self, batch: int, tokens: int) -> tuple[str, int]:
        """The text of a model that makes vectors of `batch` texts, and how many tokens a text may have at most."""
        request = ImportRequest(
            batch=batch,
            tokens=tokens,
            pool=self.pooling.kind,
            normalize=self.pooling.is_normalized,
            ignored=self.ignored,
        )
        imported = import_hf(self.config, self.where, self.name, request, self.stored)
        return imported.text, imported.longest


def is_encoder(config: bytes, where: str, ignored: tuple[str, ...] = ()) -> bool:
    """Whether a config.json is that of an encoder."""
    if find_exported_family(parse_config(config, where)) is not None:
        return False
    imported = import_hf(config, where, "model", ImportRequest(ignored=ignored), None)
    return imported.architecture in encoders.ENCODER_OUTPUTS


def find_encoder_plans(
    source: EncoderSource, options: CompileOptions, cache: PlanCache, batch: int, places: int,
    phase: Callable[[str], None],
) -> tuple[KeptPlan, ...]:  # fmt: skip
    """The plans for texts of up to `places` tokens, the shortest first. All cut weights as that one does."""
    kept: list[KeptPlan] = []
    for length in [*(length for length in LENGTHS if length < places), places]:
        phase(f"planning texts of {length} tokens")
        text, _ = source.write_model(batch, length)
        chosen = replace(options, pins=make_pins(kept[0].bundle)) if kept else options
        kept.append(cache.get(text, f"encode-{length}", chosen, phase))
    return tuple(kept)
