"""What `einc serve` does: plans and weights of a model, an engine over them, and the server in front of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from einc.cli.text_generation import note_compiled, open_cache, read_source
from einc.errors import UsageError
from einc.generation.decoder_plans import (
    MAX_SEQUENCES,
    DecoderSizes,
    DecoderSource,
    complete_options,
    find_plans,
    has_gpus,
    list_fewer,
    list_lengths,
)
from einc.generation.encoder_plans import EncoderSource, find_encoder_plans, is_encoder
from einc.options import CompileOptions
from einc_runtime.cli import files, output
from einc_runtime.cli.progress import show_phases
from einc_runtime.cli.signals import INTERRUPT, Terminated
from einc_runtime.errors import MissingFault, UsageFault
from einc_runtime.generation.chat import ChatRenderer
from einc_runtime.generation.embedding_batch import EmbeddingBatch
from einc_runtime.generation.engine import Engine
from einc_runtime.generation.generator import open_sessions
from einc_runtime.generation.json_grammars import JsonGrammars
from einc_runtime.generation.model_folder import ChatTemplate, ModelFolder
from einc_runtime.generation.sequence_batch import SequenceBatch
from einc_runtime.generation.slots import DecoderSlots
from einc_runtime.installing import suggest_extra

if TYPE_CHECKING:
    from einc.generation.plan_cache import KeptPlan
    from einc.serving.models import EmbeddingModel, TextModel
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.execution.session import Session

MAX_CONTEXT = 2048
"""Tokens of a text where nothing else is asked for: caches take memory for as many texts of them as run at once."""
PIECE_TOKENS = 128
"""Tokens of a prompt that are read between two steps of other texts: those of a block, so that each can be shared."""
PACKAGES = ("starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """The arguments of `serve`, as click gives them."""

    folder: str
    port: int
    host: str
    name: str | None
    machine: str | None
    sites: int | tuple[int, ...] | None
    dtype: str | None
    batch: int | None
    context: int | None
    cache_tokens: int | None
    chunk: int | None
    max_tokens: int | None
    queue: int
    drain: float
    reproducible: bool
    ignored: tuple[str, ...]
    tokenizer: str | None
    plans: str | None


def serve(chosen: ServeArguments) -> None:
    """Loads the model, and answers requests until a signal ends it."""
    for name in PACKAGES:
        if find_spec(name) is None:
            raise MissingFault(f"serving needs the package {name}", hint=suggest_extra("serve"))
    from einc.serving.app import make_app
    from einc.serving.metrics import Metrics
    from einc.serving.models import ServedModel
    from einc.serving.server import bind, run_server

    with bind(chosen.host, chosen.port) as socket, ChatRenderer() as chat:
        source = read_source(chosen.folder, chosen.ignored)
        with show_phases() as phase:
            if is_encoder(source.config, source.where, source.ignored):
                model: TextModel | EmbeddingModel = _load_encoder(chosen, source, phase)
            else:
                model = _load_decoder(chosen, source, chat, phase)
        served = ServedModel(chosen.name or source.name, int(time.time()), model)
        app = make_app(served, Metrics(), _report_bug)
        host, port = socket.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

        def say_started() -> None:
            output.note(f"einc: serving {served.name} at {where}, up to {model.engine.size} texts at once")

        number = run_server(app, socket, model.engine, chosen.drain, say_started)
    if number is not None:
        raise KeyboardInterrupt if number == INTERRUPT else Terminated(number)


def _load_decoder(
    chosen: ServeArguments, source: DecoderSource, chat: ChatRenderer, phase: Callable[[str], None]
) -> TextModel:
    from einc.serving.models import TextModel

    with files.reading(chosen.folder):
        folder = ModelFolder(chosen.folder, chosen.tokenizer)
        tokenizer = folder.read_tokenizer()
        end_tokens, sampling = folder.read_end_tokens(tokenizer), folder.read_sampling()
        template = _find_template(folder)
    cache = open_cache(chosen.plans)
    places = _choose_places(chosen.context, cache.find_longest(source))
    options = _complete(chosen)
    sizes = replace(_choose_sizes(chosen, places), draws=has_gpus(options))
    plans = find_plans(source, options, cache, sizes, phase)
    step, *further = _load(chosen, plans.every, plans.join_weights(chosen.folder), phase)
    slots = DecoderSlots(step, further)
    engine = Engine(SequenceBatch(slots, tokenizer, end_tokens), chosen.queue)
    most = min(chosen.max_tokens or places, places)
    grammars = JsonGrammars(tokenizer.document, slots.vocabulary, end_tokens)
    return TextModel(engine, tokenizer, template, chat, sampling, places, most, slots.times, grammars)


def _choose_sizes(chosen: ServeArguments, places: int) -> DecoderSizes:
    batch = chosen.batch or MAX_SEQUENCES
    if chosen.cache_tokens is not None and chosen.cache_tokens < places:
        raise UsageError(f"--cache-tokens: the longest text has {places:,} tokens, for which there have to be places")
    lengths = list_lengths(places, chosen.chunk or PIECE_TOKENS)
    return DecoderSizes(batch, places, lengths, list_fewer(batch), chosen.cache_tokens)


def _load_encoder(chosen: ServeArguments, source: DecoderSource, phase: Callable[[str], None]) -> EmbeddingModel:
    from einc.serving.models import EmbeddingModel

    for name in ("max_tokens", "cache_tokens", "chunk"):
        if getattr(chosen, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} means nothing for an encoder, which continues no text")
    with files.reading(chosen.folder):
        folder = ModelFolder(chosen.folder, chosen.tokenizer)
        tokenizer, pooling = folder.read_tokenizer(), folder.read_pooling()
    encoder = EncoderSource(source.config, source.where, source.name, source.stored, pooling, source.ignored)
    places = _choose_places(chosen.context, encoder.write_model(1, 1)[1])
    batch = chosen.batch or MAX_SEQUENCES
    plans = find_encoder_plans(encoder, _complete(chosen), open_cache(chosen.plans), batch, places, phase)
    engine = Engine(EmbeddingBatch(_load(chosen, plans, chosen.folder, phase)), chosen.queue)
    return EmbeddingModel(engine, tokenizer, places)


def _load(
    chosen: ServeArguments, plans: Sequence[KeptPlan], weights: WeightSource, phase: Callable[[str], None]
) -> list[Session]:
    note_compiled(plans)
    phase("loading the weights")
    with files.reading(chosen.folder):
        sessions = open_sessions([plan.bundle for plan in plans], weights)
    for note in sessions[0].notes:
        output.note(note)
    return sessions


def _complete(chosen: ServeArguments) -> CompileOptions:
    return complete_options(
        CompileOptions(
            machine=chosen.machine, devices=chosen.sites, dtype=chosen.dtype, reproducible=chosen.reproducible
        )
    )


def _choose_places(requested: int | None, longest: int) -> int:
    if requested is not None and requested > longest:
        raise UsageError(f"--context: the model reads texts of {longest:,} tokens at most")
    return requested or min(longest, MAX_CONTEXT)


def _find_template(folder: ModelFolder) -> ChatTemplate | None:
    try:
        return folder.read_chat_template()
    except UsageFault:  # there is none, and chats are refused
        return None


def _report_bug(error: Exception) -> None:
    text = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    output.note(f"einc: a bug in einc: {text}")
