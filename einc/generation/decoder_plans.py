"""Which plans make text with a decoder: steps of one token for each sequence, and a few of more tokens for prompts.

All of them are decode steps that are derived from one model text, over the same caches, which lie in blocks; so a
prompt may be read in several pieces, a sequence may start while others go on, and plans may have any number of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from einc.errors import UsageError
from einc.generation.plan_cache import KeptPlan, PlanCache
from einc.graph.decode_step import StepRequest
from einc.importers.common import ImportRequest
from einc.importers.config import parse_config
from einc.importers.hf import ImportedModel, find_exported_family, find_longest, import_hf
from einc.logical.pins import MAX_PINS, Pin
from einc.ops.step_forms import CacheBlocks
from einc.options import CompileOptions
from einc.target import select_target
from einc_runtime.generation.decode_plan import DRAW_KEYS, DRAW_SETTINGS, DRAWN_TOKEN, LIKELY_LOGIT, LIKELY_TOKEN
from einc_runtime.plan.schema import HOST, Bundle
from einc_runtime.plan.states import find_updates

if TYPE_CHECKING:
    from einc.importers.arrays.values import Elements
    from einc_runtime.execution.data.weights import WeightSource

LENGTHS = (32, 128, 512)
"""The numbers of new tokens of a sequence that there are plans for, beside one."""
BLOCK_TOKENS = 128
"""The tokens of a block, at most: whole tiles of attention on the CPU, and what a sequence wastes is half of one."""
MIN_PLACES = 256
"""The smallest cache, in tokens of a sequence. Larger ones are powers of two, so that few plans serve many lengths."""
TOKEN_DIMENSION = "tokens"
"""The dimension of imported texts along which tokens run."""
SEQUENCE_DIMENSION = "sequences"
"""That of the tokens whose logits are wanted."""
_SHARING = ("equation", "index")
"""Families of operators that read large weights."""

_LIKELY_END = f"""
{LIKELY_TOKEN}, {LIKELY_LOGIT} = argmax(logits)
output {LIKELY_TOKEN}, {LIKELY_LOGIT}
"""
"""The end of a text whose logits stay where they are, if the most likely token is all that is asked for."""
_DRAWN_END = f"""
input {DRAW_SETTINGS} : f32[{SEQUENCE_DIMENSION}, 4]
input {DRAW_KEYS} : i32[{SEQUENCE_DIMENSION}, 2]
{DRAWN_TOKEN}, {LIKELY_TOKEN}, {LIKELY_LOGIT} = draw_token(logits, {DRAW_SETTINGS}, {DRAW_KEYS})
output {DRAWN_TOKEN}, {LIKELY_TOKEN}, {LIKELY_LOGIT}
"""
"""The end of one that draws tokens there, too."""

MAX_SEQUENCES = 8
"""Sequences at once where nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class DecoderSource:
    """A decoder to be imported: the bytes of its config.json, its name, the names of its stored tensors, and the fields
    of the configuration that are ignored."""

    config: bytes
    where: str
    name: str
    stored: frozenset[str] | None
    ignored: tuple[str, ...] = ()

    @property
    def is_exported(self) -> bool:
        """Whether transformers builds the model, which takes seconds."""
        return find_exported_family(parse_config(self.config, self.where)) is not None

    def find_longest(self) -> int:
        """How many tokens a text may have."""
        return find_longest(self.config, self.where, self.ignored)

    def write_model(self, places: int) -> ImportedModel:
        """The model that reads so many tokens of a sequence."""
        request = ImportRequest(tokens=places, logits="last", ignored=self.ignored)
        return import_hf(self.config, self.where, self.name, request, self.stored)


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """So many sequences, the places of each, and the lengths of the pieces of prompts; smaller numbers of sequences of
    which steps have plans of their own; the tokens of all sequences together, as many as they can have unless it is
    said; and whether steps draw tokens where the logits are, which pays on GPUs."""

    sequences: int
    places: int
    lengths: Sequence[int]
    fewer: Sequence[int] = ()
    tokens: int | None = None
    draws: bool = False

    @property
    def blocks(self) -> CacheBlocks:
        """The blocks in which caches lie: those of all tokens, and a spare one."""
        size = next(size for size in range(min(BLOCK_TOKENS, self.places), 0, -1) if self.places % size == 0)
        return CacheBlocks(-(-(self.tokens or self.sequences * self.places) // size) + 1, size)


@dataclass(frozen=True, slots=True)
class DecoderPlans:
    """The plan of a step, others that take a token of fewer sequences or read prompts, and weights that the model's
    folder does not have."""

    step: KeptPlan
    further: tuple[KeptPlan, ...]
    constants: Mapping[str, Elements] = field(default_factory=dict)

    @property
    def every(self) -> tuple[KeptPlan, ...]:
        """All plans, that of a step first."""
        return (self.step, *self.further)

    def join_weights(self, folder: str) -> WeightSource:
        """What sessions load their weights from."""
        return [self.constants, folder] if self.constants else folder


def choose_places(longest_prompt: int, max_tokens: int, longest: int) -> int:
    """The places of a cache for such a prompt and so many new tokens, as far as the model allows.

    Raises UsageError for a prompt that leaves no room for a token in a text of `longest` tokens.
    """
    if longest_prompt >= longest:
        raise UsageError(f"a prompt has {longest_prompt:,} tokens, and the model reads texts of {longest:,} at most")
    places = MIN_PLACES
    while places < longest_prompt + max_tokens:
        places *= 2
    return min(places, longest)


def list_lengths(places: int, longest: int = LENGTHS[-1]) -> tuple[int, ...]:
    """All pieces that prompts are read in, in caches of so many places: of at most `longest` tokens."""
    return tuple(length for length in sorted({*LENGTHS, longest}) if length <= min(places, longest)) or (places,)


def list_fewer(sequences: int) -> tuple[int, ...]:
    """The smaller numbers of sequences for which steps have plans of their own: powers of two."""
    return tuple(1 << n for n in range((sequences - 1).bit_length()))


def choose_lengths(prompts: Sequence[int], places: int) -> tuple[int, ...]:
    """The pieces that prompts of so many tokens are read in, each length once: the largest as often as it fits, and
    for the rest the smallest that takes it."""
    lengths = list_lengths(places)
    needed = set()
    for count in prompts:
        if count > 1:
            full_pieces, remaining = divmod(count, lengths[-1])
            needed |= {lengths[-1]} if full_pieces else set()
            needed |= {next(length for length in lengths if length >= remaining)} if remaining > 1 else set()
    return tuple(sorted(needed))


def complete_options(options: CompileOptions, ranks: int = 1) -> CompileOptions:
    """Where nobody says how many sites the CPU should have, it has one for each process, whose cores work together."""
    if options.devices is None and select_target(options).machine.name == HOST:
        return replace(options, machine=HOST, devices=ranks)
    return options


def has_gpus(options: CompileOptions) -> bool:
    """Whether plans are for GPUs, which draw tokens where the logits are: on CPUs it takes longer than `draw`."""
    return all(site.gpu is not None for site in select_target(options).machine.sites)


def find_plans(
    source: DecoderSource, options: CompileOptions, cache: PlanCache, sizes: DecoderSizes, phase: Callable[[str], None]
) -> DecoderPlans:
    """The plans for these sizes. Prompts are read one by one: a piece of one delays others by no more than it takes."""
    phase("reading the configuration")
    model = cache.get_model(source, sizes.places)
    # The text of a model that transformers builds may have a few tokens more, so that no other dimension is as long.
    written = re.search(rf"^dim {TOKEN_DIMENSION} *= *([0-9]+)", model.text, re.MULTILINE)
    blocks = (sizes if written is None else replace(sizes, places=int(written[1]))).blocks

    def find(tokens: int, sequences: int, chosen: CompileOptions) -> KeptPlan:
        phase(f"planning {tokens} tokens of each of {sequences}")
        text = model.text + (_DRAWN_END if sizes.draws and tokens == 1 else _LIKELY_END)
        return cache.get(text, f"decode-{tokens}", request_step(chosen, tokens, sequences, blocks), phase)

    step = find(1, sizes.sequences, options)
    pinned_options = replace(options, pins=make_pins(step.bundle))
    steps = [find(1, sequences, pinned_options) for sequences in sizes.fewer]
    pieces = [find(length, 1, pinned_options) for length in sizes.lengths]
    return DecoderPlans(step, (*steps, *pieces), model.constants)


def request_step(
    options: CompileOptions, tokens: int, sequences: int, blocks: CacheBlocks | None = None
) -> CompileOptions:
    """The options of a step of an imported text: so many new tokens, and the last of each sequence to be read."""
    step = StepRequest(TOKEN_DIMENSION, tokens, sequences, blocks)
    definitions = (*options.definitions, (SEQUENCE_DIMENSION, str(sequences)))
    return replace(options, step=step, definitions=definitions)


def make_pins(bundle: Bundle) -> tuple[Pin, ...]:
    """Pins that cut weights and states as this plan does, so that other plans of the model share their memory: a state
    lies where it is written over.

    Operators that this plan cuts by tokens, of which others have other numbers, are left open.
    """
    pins, updated = [], find_updates(bundle.operations)
    for operation in bundle.operations:
        kinds = [bundle.tensors[number].kind for number in operation.inputs]
        cut = {index.name: len(index.intervals) for index in operation.indices if len(index.intervals) > 1}
        if operation.outputs[0] in updated or (
            "weight" in kinds and operation.family in _SHARING and TOKEN_DIMENSION not in cut
        ):
            parts = [f"{name}/{count}" for name, count in cut.items()]
            parts += [f"replicas/{operation.replicas}"] * (operation.replicas > 1)
            pins.append(Pin(operation.name, ",".join(parts) or "whole", "the plan of a step"))
    return tuple(pins) if len(pins) <= MAX_PINS else ()
