"""What is done for a number of users: which plans run, and how often."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from einc.generation.decoder_plans import SEQUENCE_DIMENSION, TOKEN_DIMENSION
from einc.graph.decode_step import StepRequest
from einc.importers.common import ImportRequest
from einc.importers.config import parse_config
from einc.importers.decoders import DECODER_ARCHITECTURES
from einc.importers.hf import find_exported_family, import_hf

PhaseName = Literal["prompt", "token", "run"]
"""Reading one prompt, making one token for each user, or running a model once."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One plan of a round: the text of its model, with `-D` definitions, or a `step` that is derived from it. It runs
    `runs` times in a round.

    Plans of a round share their weights in memory: those after the first cut them as the first one does. `part_text` is
    the text of one of several sequences that run together, where that is known.
    """

    name: PhaseName
    text: str
    runs: int
    definitions: tuple[tuple[str, str], ...] = ()
    step: StepRequest | None = None
    part_text: str | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """All that is done once for each user of a replica; it makes `items` of the workload's unit."""

    phases: tuple[Phase, ...]
    items: int


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """Runs of a model text, whose param `batch_name` is the number of users; without it, a run is for one user."""

    name: str
    text: str
    batches: tuple[int, ...]
    batch_name: str | None = None
    definitions: tuple[tuple[str, str], ...] = ()
    unit: str = "runs"

    def plan_round(self, users: int, together: int = 1) -> Round:
        counted = () if self.batch_name is None else ((self.batch_name, str(users)),)
        return Round((Phase("run", self.text, 1, (*self.definitions, *counted)),), users)


@functools.lru_cache(maxsize=8)  # every number of users has the same text
def _import_text(config: bytes, where: str, name: str, request: ImportRequest, stored: frozenset[str] | None) -> str:
    return import_hf(config, where, name, request, stored).text


@dataclass(frozen=True, slots=True)
class ChatWorkload:
    """A decoder that reads a prompt of `prompt_tokens` for each user, and answers with `answer_tokens`.

    Prompts are read one after the other, or a few together, and make the first token of an answer; all other tokens are
    made for all users at once, over caches that have a place for each token of both.
    """

    name: str
    config: bytes
    where: str
    stored: frozenset[str] | None
    batches: tuple[int, ...]
    prompt_tokens: int
    answer_tokens: int
    ignored: tuple[str, ...] = ()
    is_exported: bool = False  # transformers builds the model: a text of it reads one sequence
    unit: str = "tokens"

    def plan_round(self, users: int, together: int = 1) -> Round:
        """A round in which prompts are read `together`, so many at once; they divide the users."""
        text = self._write(ImportRequest(tokens=self.prompt_tokens + self.answer_tokens, ignored=self.ignored))

        def read(name: PhaseName, tokens: int, sequences: int, runs: int) -> Phase:
            step = StepRequest(TOKEN_DIMENSION, tokens, sequences)
            return Phase(name, text, runs, ((SEQUENCE_DIMENSION, str(sequences)),), step)

        if self.is_exported:
            prompt = read("prompt", self.prompt_tokens, together, users // together)
        else:
            request = ImportRequest(batch=together, tokens=self.prompt_tokens, caches=True, ignored=self.ignored)
            alone = self._write(replace(request, batch=1))
            prompt = Phase("prompt", self._write(request), users // together, part_text=alone)
        return Round((read("token", 1, users, self.answer_tokens - 1), prompt), users * self.answer_tokens)

    def _write(self, request: ImportRequest) -> str:
        return _import_text(self.config, self.where, self.name, request, self.stored)


@dataclass(frozen=True, slots=True)
class EncoderWorkload:
    """An encoder that reads a text of `prompt_tokens` for each user, those of all users at once."""

    name: str
    config: bytes
    where: str
    stored: frozenset[str] | None
    batches: tuple[int, ...]
    prompt_tokens: int
    ignored: tuple[str, ...] = ()
    unit: str = "texts"

    def plan_round(self, users: int, together: int = 1) -> Round:
        request = ImportRequest(batch=users, tokens=self.prompt_tokens, ignored=self.ignored)
        imported = import_hf(self.config, self.where, self.name, request, self.stored)
        return Round((Phase("run", imported.text, 1),), users)


Workload = TextWorkload | ChatWorkload | EncoderWorkload
"""What a model is to do: `batches` are the numbers of users at once that are asked about, and `unit` is what its rates
count. `plan_round(users, together)` is the round of a replica with so many users, in which so many prompts are read at
once; it raises ModelError for a model that cannot have them."""


def describe_excess(workload: Workload) -> str | None:
    """That a published model was not made for texts as long as these, if its configuration says so."""
    if isinstance(workload, TextWorkload):
        return None
    tokens = workload.prompt_tokens + (workload.answer_tokens if isinstance(workload, ChatWorkload) else 0)
    longest = parse_config(workload.config, workload.where).get("max_position_embeddings")
    if not isinstance(longest, int) or tokens <= longest:
        return None
    return f"{workload.name} was made for texts of at most {longest:,} tokens, and {tokens:,} are asked for"


def read_folder_workload(
    name: str,
    config: tuple[bytes, str],
    stored: frozenset[str] | None,
    batches: Sequence[int],
    tokens: tuple[int, int],
    ignored: tuple[str, ...],
) -> Workload:
    """The workload of a published model: `config` are the bytes of its config.json and the name that messages give
    it, `tokens` those of prompts and of answers. Raises ModelError for a model that einc cannot import."""
    content, where = config
    if find_exported_family(parse_config(content, where)) is not None:
        return ChatWorkload(name, content, where, stored, tuple(batches), *tokens, ignored, is_exported=True)
    imported = import_hf(content, where, name, ImportRequest(ignored=ignored), stored)
    if imported.architecture in DECODER_ARCHITECTURES:
        return ChatWorkload(name, content, where, stored, tuple(batches), *tokens, ignored)
    return EncoderWorkload(name, content, where, stored, tuple(batches), tokens[0], ignored)
