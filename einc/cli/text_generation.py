"""What `einc generate` does: prompts, plans and weights, and the text as it is made."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from einc.cli.model_folders import read_published_model
from einc.generation.decoder_plans import (
    MAX_SEQUENCES,
    DecoderPlans,
    DecoderSizes,
    DecoderSource,
    choose_lengths,
    choose_places,
    complete_options,
    find_plans,
    has_gpus,
)
from einc.generation.plan_cache import KeptPlan, PlanCache, find_cache_folder
from einc.options import CompileOptions
from einc.plan_report import read_report
from einc_runtime.cli import files, output
from einc_runtime.cli.launching import start_ranks
from einc_runtime.cli.progress import show_phases
from einc_runtime.cli.ranks import World, join_ranks, require_ranks, split_task
from einc_runtime.errors import UsageFault
from einc_runtime.execution.data.weights import WeightSource, find_path
from einc_runtime.execution.proved_plans import require_proof
from einc_runtime.execution.ranks.mpi import is_started_by_mpi
from einc_runtime.execution.session import Session
from einc_runtime.execution.task_errors import name_task
from einc_runtime.generation.chat import ChatRenderer
from einc_runtime.generation.generator import Completion, Generator, open_sessions
from einc_runtime.generation.model_folder import ModelFolder
from einc_runtime.generation.ranks import RankSession, dismiss, follow, open_rank_sessions, share_arrays
from einc_runtime.generation.sampling import GREEDY, Sampling
from einc_runtime.generation.tokenizer import MAX_PROMPT, TextTokenizer
from einc_runtime.plan.schema import Bundle
from einc_runtime.text import format_count


@dataclass(frozen=True, slots=True)
class GenerateArguments:
    """The arguments of `generate`, as click gives them."""

    folder: str
    prompts: tuple[str, ...]
    machine: str | None
    sites: int | tuple[int, ...] | None
    dtype: str | None
    batch: int | None
    max_tokens: int
    temperature: float | None
    top_p: float | None
    seed: int
    stops: tuple[str, ...]
    chat: bool
    system: str | None
    as_ids: bool
    ignored: tuple[str, ...]
    tokenizer: str | None
    plans: str | None
    ranks: int | None
    sites_per_rank: int | tuple[int, ...] | None
    price_pins: bool
    as_json: bool


def generate(chosen: GenerateArguments) -> None:
    """Reads the prompts, finds or compiles the plans, loads the weights, and makes text; in this process, or in
    several, of which rank 0 does all of this, and the others compute with it."""
    if chosen.system is not None and not chosen.chat:
        raise click.UsageError("--system means nothing without --chat")
    if chosen.as_ids and (chosen.chat or chosen.stops):
        raise click.UsageError("--chat and --stop need a tokenizer, and --ids does without one")
    bundles: list[Bundle] = []

    def describe(number: int) -> str:
        plan, position = split_task(number)
        if plan < len(bundles):
            return name_task(position, bundles[plan].tasks[position])
        return f"task {position:,} of a step" if plan == 0 else f"task {position:,} for prompts"

    require_ranks(chosen.ranks, chosen.sites_per_rank)
    if chosen.ranks not in (None, 1) and not is_started_by_mpi():
        assert chosen.ranks is not None
        start_ranks(chosen.ranks, sys.argv[1:], "einc", describe)
        return
    with join_ranks(describe, chosen.sites_per_rank, as_json=chosen.as_json) as world:
        if world is None or world.reports:
            _generate(chosen, world, bundles)
        else:
            bundles += world.share_plans(lambda: ())
            constants = share_arrays(world.links)
            follow(world.links, _open_on_rank(world, bundles, [constants, chosen.folder]))


def _generate(chosen: GenerateArguments, world: World | None, bundles: list[Bundle]) -> None:
    """In the only process, or on rank 0. Keeps the plans in `bundles`."""
    _choose_sampling(chosen, GREEDY)  # raises for what cannot be, before anything is read
    clock = _Clock()
    source = read_source(chosen.folder, chosen.ignored)
    with files.reading(chosen.folder):
        folder = ModelFolder(chosen.folder, chosen.tokenizer)
        tokenizer = None if chosen.as_ids else folder.read_tokenizer()
        end_tokens, sampling = folder.read_end_tokens(tokenizer), _choose_sampling(chosen, folder.read_sampling())
        rows = _read_prompts(chosen, folder, tokenizer)
    clock.mark("read_ms")
    with show_phases() as phase:
        ranks = 1 if world is None else world.links.size
        plans = _find_plans(source, chosen, [len(row) for row in rows], sampling, ranks, phase)
        bundles += (plan.bundle for plan in plans.every)
        clock.mark("plan_ms")
        phase("loading the weights")
        sessions = _open(bundles, plans, chosen.folder, world)
        for note in sessions[0].notes:
            output.note(note)
        generator = Generator(sessions[0], sessions[1:], tokenizer=tokenizer, end_tokens=end_tokens)
        clock.mark("load_ms")
    results = _run(generator, rows, chosen, sampling, clock)
    clock.mark("generate_ms")
    if world is not None:
        dismiss(world.links)
    if chosen.as_json:
        output.say_json(_make_document(plans, generator, results, clock))


def _choose_sampling(chosen: GenerateArguments, default: Sampling) -> Sampling:
    """What the options say, and the model's folder where they say nothing."""
    temperature = default.temperature if chosen.temperature is None else chosen.temperature
    top_p = default.top_p if chosen.top_p is None else chosen.top_p
    return dataclasses.replace(default, temperature=temperature, top_p=top_p, seed=chosen.seed)


def _open(bundles: list[Bundle], plans: DecoderPlans, folder: str, world: World | None) -> Sequence[Session]:
    """Sessions of the plans. If there are other ranks, they get the plans, once these are proved, and the weights that
    the folder does not have."""
    weights = plans.join_weights(folder)
    if world is not None:
        for bundle in bundles:
            require_proof(bundle)
        world.share_plans(lambda: bundles)
        share_arrays(world.links, plans.constants)
        return _open_on_rank(world, bundles, weights)
    with files.reading(find_path(weights) or ""):
        return open_sessions(bundles, weights)


def _open_on_rank(world: World, bundles: list[Bundle], weights: WeightSource) -> list[RankSession]:
    with files.reading(find_path(weights) or ""):
        return open_rank_sessions(
            bundles, weights, world.links, lambda number, bundle, common: world.make_executor(bundle, number, common)
        )


class _Clock:
    """Milliseconds of the phases of a command, one after the other."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = perf_counter()

    def mark(self, phase: str) -> None:
        """Ends a phase."""
        now = perf_counter()
        self.phases[phase] = 1e3 * (now - self._last)
        self._last = now

    def note(self, event: str) -> None:
        """Keeps when something happens in the phase that goes on, if it is the first of its kind."""
        self.phases.setdefault(event, 1e3 * (perf_counter() - self._last))


def read_source(folder: str, ignored: tuple[str, ...]) -> DecoderSource:
    """What plans of the decoder in a folder or GGUF file are made from, without the fields `ignored` of its
    configuration. Raises UsageFault where there are no weights."""
    model = read_published_model(folder)
    if model.stored is None:
        raise UsageFault("there is no .safetensors file in this folder", where=folder)
    return DecoderSource(model.config, model.where, model.name, model.stored, ignored)


def open_cache(folder: str | None) -> PlanCache:
    """The plans that are kept in a folder, or else in the user's cache folder."""
    return PlanCache(find_cache_folder() if folder is None else Path(folder))


def note_compiled(plans: Sequence[KeptPlan]) -> None:
    """Says on standard error which plans were compiled just now, if any."""
    new = [plan for plan in plans if plan.is_new]
    if new:
        kept = sorted({str(plan.file.parent) for plan in new if plan.file is not None})
        where = f", kept in {kept[0]}" if kept else "; they could not be kept"
        output.note(f"einc: {format_count(len(new), 'plan')} compiled{where}")


def _read_prompts(chosen: GenerateArguments, folder: ModelFolder, tokenizer: TextTokenizer | None) -> list[list[int]]:
    texts = [_read_standard_input() if prompt == files.STDIN else prompt for prompt in chosen.prompts]
    if tokenizer is None:
        return [_parse_ids(text) for text in texts]
    if not chosen.chat:
        return [tokenizer.encode(text) for text in texts]
    template = folder.read_chat_template()
    before = [] if chosen.system is None else [{"role": "system", "content": chosen.system}]
    with ChatRenderer() as chat:
        written = [
            chat.render(template.text, [*before, {"role": "user", "content": text}], template.variables, template.file)
            for text in texts
        ]
    return [tokenizer.encode(text, special=False) for text in written]


def _read_standard_input() -> str:
    files.require_present(files.STDIN)
    with files.reading("standard input"):
        return sys.stdin.buffer.read(4 * MAX_PROMPT + 1).decode("utf-8", "replace")


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise click.UsageError(f"{text[:60]!r} are no tokens such as 1,15,7")
    return [int(part) for part in parts]


def _find_plans(
    source: DecoderSource,
    chosen: GenerateArguments,
    prompts: Sequence[int],
    sampling: Sampling,
    ranks: int,
    phase: Callable[[str], None],
) -> DecoderPlans:
    """The plans for prompts of these lengths, to be run on so many ranks; a line on standard error says what is new."""
    batch = chosen.batch or min(len(prompts), MAX_SEQUENCES)
    cache = open_cache(chosen.plans)
    places = choose_places(max(prompts), chosen.max_tokens, cache.find_longest(source))
    options = CompileOptions(
        machine=chosen.machine, devices=chosen.sites, dtype=chosen.dtype, price_pins=chosen.price_pins
    )
    options = complete_options(options, ranks)
    draws = sampling.temperature > 0 and has_gpus(options)
    sizes = DecoderSizes(batch, places, choose_lengths(prompts, places), draws=draws)
    plans = find_plans(source, options, cache, sizes, phase)
    note_compiled(plans.every)
    for piece in plans.further if chosen.price_pins else ():
        _note_price(piece.bundle)
    return plans


def _note_price(bundle: Bundle) -> None:
    """Says what it costs that a plan for prompts has the weights and caches of the plan of a step."""
    predicted_ms, unrestricted_ms = bundle.predicted_ms, read_report(bundle).unrestricted_ms
    if predicted_ms and unrestricted_ms:
        from einc.report.tables import describe_trust
        from einc.report.times import describe_prediction

        trust = describe_trust(describe_prediction(bundle))
        output.note(
            f"einc: a prompt's plan with the step's weights and caches: {predicted_ms:.4g} ms predicted{trust}, "
            f"{predicted_ms / unrestricted_ms:.2f} times the {unrestricted_ms:.4g} ms of one without them"
        )


def _run(
    generator: Generator, rows: Sequence[Sequence[int]], chosen: GenerateArguments, sampling: Sampling, clock: _Clock
) -> list[Completion]:
    """Makes the texts, and prints them unless they are to be a document."""
    results = [Completion(len(row)) for row in rows]
    printed = 0
    for new in generator.stream(rows, chosen.max_tokens, sampling, chosen.stops, joins=not chosen.chat):
        clock.note("first_token_ms")
        result = results[new.sequence]
        result.tokens.append(new.token)
        result.text, result.ended = result.text + new.text, new.ended
        if chosen.as_json:
            continue
        if len(results) == 1:
            output.say_at_once(new.text if not chosen.as_ids else str(new.token) + ("\n" if new.ended else ","))
            continue
        while printed < len(results) and results[printed].ended is not None:
            output.say(f"[{printed + 1}] {_format(results[printed], chosen.as_ids)}")
            printed += 1
    if not chosen.as_json and len(results) == 1 and not chosen.as_ids:
        output.say("")
    return results


def _format(result: Completion, as_ids: bool) -> str:
    return ",".join(map(str, result.tokens)) if as_ids else result.text


def _make_document(
    plans: DecoderPlans, generator: Generator, results: Sequence[Completion], clock: _Clock
) -> dict[str, Any]:
    from einc.report.times import describe_prediction

    times, facts = generator.times, generator.facts
    bundle = plans.step.bundle
    return {
        "model": bundle.model,
        "machine": bundle.machine,
        "sites": len(bundle.devices),
        "plans": [
            {
                "file": None if plan.file is None else str(plan.file),
                "compiled": plan.is_new,
                "predicted_ms": plan.bundle.predicted_ms,
                **describe_prediction(plan.bundle),
                "unrestricted_ms": read_report(plan.bundle).unrestricted_ms,
            }
            for plan in plans.every
        ],
        **({} if facts.ranks is None else {"ranks": facts.ranks}),
        "memory_bytes": None if facts.cpu is None else dataclasses.asdict(facts.cpu.memory_bytes),
        "sequences": [
            {"prompt_tokens": result.prompt_tokens, "tokens": result.tokens, "text": result.text, "ended": result.ended}
            for result in results
        ],
        "times": {
            **clock.phases,
            "prefill_ms": times.prefill_ms,
            "decode_ms": times.decode_ms,
            "prefill_tokens_per_s": _divide(times.prefill_tokens, times.prefill_ms),
            "decode_tokens_per_s": _divide(times.decode_tokens, times.decode_ms),
        },
    }


def _divide(tokens: int, milliseconds: float) -> float | None:
    """Tokens in a second; None where there were none."""
    return 1e3 * tokens / milliseconds if tokens and milliseconds > 0 else None
