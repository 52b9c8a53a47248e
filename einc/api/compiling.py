"""Creating graphs and compiling them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from einc.api.arguments import GraphOptions, Shape, check_size, read_dtype, read_shape
from einc.api.graph import Graph
from einc.api.plan import Plan
from einc.core.tensor import TensorDesc
from einc.errors import MachineWarning, UsageError, warn_user
from einc.options import BASELINES, INPUT_PLACEMENTS, OBJECTIVES, SCHEDULES, CompileOptions, GivenExchange
from einc_runtime.text import did_you_mean, parse_memory

if TYPE_CHECKING:
    from einc.api.tensor import Tensor
    from einc.compiler import Compiled
    from einc.exchange.synthesis.proposers import Proposer
    from einc.graph.decode_step import StepRequest

_TEXT_OPTIONS = {
    "definitions", "preset", "dtype", "step", "train", "gradients", "optimizer", "clip",
    "precision", "accumulate", "decay", "undecayed", "recompute",
}  # fmt: skip
"""Options about model texts; in a graph, Python decides these, a step is derived from the graph, and `grad` adds
gradients to it."""


def createGraph(name: str = "graph") -> Graph:
    return Graph(name)


def tensorDesc(shape: Shape, dtype: Any = "f32") -> TensorDesc:
    """The shape and element type of an input or weight.

    `shape` is a list of extents, or names of dimensions with their extents, as in {"tokens": 1024, "width": 512}.
    `dtype` is a name ("f16", "float16") or a numpy type.
    """
    dims, extents = read_shape(shape)
    desc = TensorDesc(dims, extents, read_dtype(dtype))
    check_size(desc)
    return desc


def compileGraph(
    graph: Graph,
    device: Sequence[int] | int | None = None,
    schedule_mode: str = "synthesized",
    *,
    pins: Mapping[str, str] | None = None,
    baselines: Iterable[str] = (),
    exchanges: Mapping[str, str | os.PathLike[str]] | None = None,
    proposers: Iterable[str | Proposer] = (),
    step: Mapping[str, int | tuple[int, int]] | None = None,
    machine: str | None = None,
    **options: Unpack[GraphOptions],
) -> Plan:
    """Plan a graph for a machine, keep the plan on the graph and return it.

    `device` names sites of the machine, or how many of them. `schedule_mode` is "synthesized", which the paper calls
    "ai", or "naive". `pins` fix how operators are cut, by patterns of the names of their outputs: {"hidden*":
    "tokens/2,d_ff/4"}; later patterns go first. Of the plan and the `baselines` ("single", "data", "sequence",
    "megatron", "fsdp") the fastest is taken. `exchanges` has exchange programs (texts, or paths of files) by the names
    of their operators. With `step`, a decode step is derived from the graph and planned: {"tokens": 1} for one new
    token of each sequence. `proposers` are sources as for `--propose`, or objects with a method `propose`. `machine` is
    a name or the path of a file, and `options` are those of `einc.options.CompileOptions` that do not concern model
    texts: `selector`, `seed`, `time_limit`, `memory` (bytes of each site, or a text such as "24GiB"), `input_placement`
    ("replicated": every site has what it reads before the clock starts, or "once": every block lies on one site and is
    moved from there), ...

    Without a `machine` the plan is for the visible GPUs, or for this host's cores if there are none. Compiling again
    makes a new plan of the same graph.
    """
    from einc.compiler import Compiled

    named = {
        **options,
        "machine": machine,
        "schedule": schedule_mode,
        "pins": pins,
        "baselines": baselines,
        "exchanges": exchanges,
    }
    chosen, sources = read_options("compileGraph", device, {**named, "proposers": proposers}, _TEXT_OPTIONS)
    source = graph._build()
    if step is not None:
        from einc.graph.decode_step import derive_step

        source = derive_step(source, _read_step(step)).graph
    compiled = Compiled(source, chosen, proposers=sources)
    warn_of_assumptions(compiled)
    return graph._take_plan(compiled)


def grad(graph: Graph, loss: Tensor, wrt: Sequence[Tensor]) -> list[Tensor]:
    """Adds the gradients of a loss to a graph: of each tensor of `wrt`, an input or weight of floats, one of its shape.

    `loss` is one float that the graph computes. Raises ModelError with every operator that has no gradient, UsageError
    for tensors that have none.
    """
    return graph._add_gradients(loss, wrt)


def warn_of_assumptions(compiled: Compiled) -> None:
    """Warns the caller of the API where the machine was found by itself, and something about it was assumed."""
    if compiled.options.machine is None and compiled.target.assumed is not None:
        warn_user(compiled.target.assumed, MachineWarning)


_OF_OTHER_FUNCTIONS = dict.fromkeys(
    ("loss", "targets"),
    "einc.from_torch(module, args, loss=..., targets=...) makes a model with a loss, which compile takes",
)
"""What to do for options of other functions."""


def read_options(
    call: str, devices: Sequence[int] | int | None, options: Mapping[str, Any], refused: Iterable[str] = ()
) -> tuple[CompileOptions, list[Proposer]]:
    """The options of a compilation, and who is asked for exchange programs, from the arguments of `call`.

    `schedule_mode` is another name of `schedule`. Raises UsageError for what is not an option, or is one of `refused`.
    """
    from einc.logical.pins import parse_pin

    values = {name: value for name, value in options.items() if value is not None}
    if "schedule_mode" in values:
        values["schedule"] = values.pop("schedule_mode")
    proposers = [_read_proposer(source) for source in values.pop("proposers", ())]
    fields = [field.name for field in dataclasses.fields(CompileOptions)]
    known = [name for name in fields if name not in {*refused, "devices"}]
    for name in values:
        if name not in known:
            hint = (
                _OF_OTHER_FUNCTIONS.get(name)
                or did_you_mean(name, [*fields, "params"])
                or f"there are {', '.join(known)}"
            )
            raise UsageError(f"{call} has no option '{name}'", hint=hint)
    mode = values.get("schedule", "synthesized")
    if mode not in SCHEDULES:
        raise UsageError(f"schedule_mode is 'synthesized' (the paper's 'ai') or 'naive', not {mode!r:.80}")
    baselines = values.get("baselines", ())
    names = [baselines] if isinstance(baselines, str) else list(baselines)
    for name in names:
        if name not in BASELINES:
            raise UsageError(f"{name!r:.80} is not a baseline", hint=f"baselines is a list of {', '.join(BASELINES)}")
    where = values.get("input_placement", INPUT_PLACEMENTS[0])
    if where not in INPUT_PLACEMENTS:
        raise UsageError(f"input_placement is {' or '.join(map(repr, INPUT_PLACEMENTS))}, not {where!r:.80}")
    if values.get("objective", OBJECTIVES[0]) not in OBJECTIVES:
        raise UsageError(f"objective is {' or '.join(map(repr, OBJECTIVES))}, not {values['objective']!r:.80}")
    if isinstance(values.get("memory"), str):
        values["memory"] = parse_memory(values["memory"]) or _refuse_memory(values["memory"])
    if "step" in values:
        values["step"] = _read_step(values["step"])
    for option in ("gradients", "undecayed"):
        if option in values:
            values[option] = tuple(values[option])
    pins, exchanges = values.get("pins", {}), values.get("exchanges", {})
    if not isinstance(pins, Mapping):
        raise UsageError(
            f"pins is {pins!r:.80}", hint="write {'hidden*': 'tokens/8'}: patterns of names, and their cuts"
        )
    values |= {
        "devices": devices if devices is None or isinstance(devices, int) else tuple(devices),
        "pins": tuple(parse_pin(f"{pattern}={cut}") for pattern, cut in pins.items()),
        "baselines": tuple(names),
        "exchanges": tuple(_read_exchange(name, program) for name, program in exchanges.items()),
    }
    return CompileOptions(**values), proposers


def _refuse_memory(text: str) -> NoReturn:
    raise UsageError(
        f"{text!r:.80} is not an amount of memory", hint="such as 24GiB, 24GB, 800MiB or a number of bytes"
    )


def _read_step(step: Mapping[str, int | tuple[int, int]]) -> StepRequest:
    from einc.graph.decode_step import StepRequest as Request
    from einc.ops.step_forms import CacheBlocks

    entries = dict(step) if isinstance(step, Mapping) else {}
    blocks = entries.pop("blocks", ()) if len(entries) == 2 else ()
    name, counts = next(iter(entries.items())) if len(entries) == 1 else ("", ())
    numbers: tuple[int, ...] = counts if isinstance(counts, tuple) else (counts,)
    pools: tuple[int, ...] = blocks if isinstance(blocks, tuple) else (blocks,)
    fits = isinstance(name, str) and len(numbers) in (1, 2) and len(pools) in (0, 2)
    if not fits or not all(type(n) is int and n >= 0 for n in (*numbers, *pools)):
        hint = '{"tokens": 1}; {"tokens": (1, 8)} for 8 sequences; with "blocks": (64, 32), 64 blocks of 32 tokens'
        raise UsageError(f"step is a dimension with a number of new tokens, not {step!r:.80}", hint=hint)
    return Request(name, numbers[0], numbers[-1] if len(numbers) > 1 else 1, CacheBlocks(*pools) if pools else None)


def _read_exchange(name: str, program: str | os.PathLike[str]) -> GivenExchange:
    if isinstance(program, str):
        return GivenExchange(name, program, f"exchanges[{name!r}]")
    return GivenExchange(name, Path(program).read_text(encoding="utf-8"), os.fspath(program))


def _read_proposer(source: str | Proposer) -> Proposer:
    from einc.exchange.synthesis.sources import make_proposer

    if not isinstance(source, str):
        return source
    return make_proposer(source, lambda path: Path(path).read_text(encoding="utf-8"))
