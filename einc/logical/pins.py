"""Cuts that a person names: for operators whose names match a pattern, only the candidates that are cut so are offered.

A pin is a pattern and a cut. In a pattern, `*` stands for any characters and `?` for any one; it is compared with the
names of an operator's outputs. A cut is written as `d_ff/8` or `heads_kv/2,keys/4`: the number of intervals of the
indices that are cut, all others stay whole. A dimension may stand for the index that cuts it. `whole` (or `1`) cuts
nothing, and `...` at the end leaves what is not named to the optimizer. `replicas/2` computes every block on two sites,
and `replicated` the whole on each site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from math import prod

from einc.core.intervals import ShardableIndex
from einc.errors import UsageError
from einc.graph.graph import Graph, Node
from einc.logical.candidates import build_candidates
from einc.logical.plan import Candidate
from einc.logical.reach import find_index
from einc.ops.base import Operator
from einc_runtime.text import did_you_mean, escape_text, format_count, quote_names

MAX_PINS = 2000
"""Each is compared with the names of all operators."""

MAX_PIN_CHARACTERS = 1000
"""Characters of a pin."""

WILDCARDS = frozenset("*?[")
"""A pattern without any of them is the name of one output."""

REPLICAS = "replicas"
REST = "..."
_UNCUT = ("whole", "1")
_REPLICATED = "replicated"
_PIN_USAGE = (
    "write a cut as 'tokens/8', 'heads_kv/2,keys/4', 'whole' or 'replicated'; '...' at its end leaves the rest open"
)


@dataclass(frozen=True, slots=True)
class Pin:
    """A cut for the operators that a pattern matches; `where` says where it was given, for messages."""

    pattern: str
    cut: str
    where: str | None = None

    def __str__(self) -> str:
        return f"{self.pattern}={self.cut}"


@dataclass(frozen=True, slots=True)
class PinnedCut:
    """A cut as it was written: counts by index; `replicas` 0 means as many as there are sites for."""

    counts: tuple[tuple[str, int], ...]
    replicas: int = 1
    is_open: bool = False


def parse_pin(text: str, where: str | None = None) -> Pin:
    """The pin of `PATTERN=CUT`. Raises UsageError for any other text; indices are checked where operators are known."""
    if len(text) > MAX_PIN_CHARACTERS:
        raise UsageError(
            f"a pin of {len(text):,} characters; it may have {MAX_PIN_CHARACTERS:,}",
            where=where,
            hint="'*' stands for any name",
        )
    pattern, equals, cut = (part.strip() for part in text.partition("="))
    if not equals or not pattern or not cut:
        raise UsageError(
            f"{text[:100]!r} is not a valid pin", where=where, hint="write PATTERN=CUT: 'layer.*.up=d_ff/8'"
        )
    pin = Pin(pattern, "".join(cut.split()), where)
    parse_cut(pin)
    return pin


def parse_pin_file(text: str, file: str) -> tuple[Pin, ...]:
    """The pins of a file: one a line; empty lines, and what follows a `#`, are left out.

    Raises UsageError for a line that is not a pin, and at the first that is too many.
    """
    pins: list[Pin] = []
    for number, line in enumerate(text.splitlines(), 1):
        if pin := line.partition("#")[0].strip():
            if len(pins) == MAX_PINS:
                raise _refuse_many(f"more than {MAX_PINS:,} pins", f"{file}:{number}")
            pins.append(parse_pin(pin, f"{file}:{number}"))
    return tuple(pins)


def _refuse_many(count: str, where: str | None = None) -> UsageError:
    return UsageError(f"{count}; at most {MAX_PINS:,} are possible", where=where, hint="a pattern may match many names")


def parse_cut(pin: Pin) -> PinnedCut:
    """The cut of a pin, index by index. Raises UsageError where it is none."""
    *parts, last = pin.cut.split(",")
    is_open = last == REST
    parts += [] if is_open else [last]
    if parts in ([_UNCUT[0]], [_UNCUT[1]]) and not is_open:
        return PinnedCut(())
    if parts == [_REPLICATED] and not is_open:
        return PinnedCut((), 0)
    counts: dict[str, int] = {}
    for part in parts:
        name, _, number = part.rpartition("/")
        if not name or not re.fullmatch("[1-9][0-9]{0,8}", number):
            raise UsageError(
                f"pin {_quote(pin)}: {part[:60]!r} is not an index and a count", where=pin.where, hint=_PIN_USAGE
            )
        if name in counts:
            raise UsageError(f"pin {_quote(pin)}: index '{name}' is named twice", where=pin.where)
        counts[name] = int(number)
    return PinnedCut(tuple(counts.items()), 1, is_open)


def find_pinned(graph: Graph, pins: Sequence[Pin]) -> Mapping[str, Pin]:
    """The pin of every operator that has one, by its name; of several that match, the last.

    Raises UsageError for a pin that matches no operator, for two with one pattern and other cuts, and for too many.
    """
    if len(pins) > MAX_PINS:
        raise _refuse_many(f"{len(pins):,} pins")
    pinned: dict[str, Pin] = {}
    by_pattern: dict[str, Pin] = {}
    for pin, names in _match(graph, pins):
        earlier = by_pattern.setdefault(pin.pattern, pin)
        if earlier.cut != pin.cut:
            location = f" in {earlier.where}" if earlier.where else ""
            raise UsageError(
                f"pin {_quote(pin)} contradicts {_quote(earlier)}{location}",
                where=pin.where,
                hint="leave one of them out",
            )
        if not names:
            raise UsageError(f"pin {_quote(pin)} matches no operator", where=pin.where, hint=_suggest(graph, pin))
        pinned.update(dict.fromkeys(names, pin))
    return pinned


def select_pins(graph: Graph, pins: Sequence[Pin]) -> tuple[Pin, ...]:
    """The pins that match an operator of the graph."""
    return tuple(pin for pin, names in _match(graph, pins) if names)


def _match(graph: Graph, pins: Sequence[Pin]) -> Iterator[tuple[Pin, Sequence[str]]]:
    makers = {name: node.name for node in graph.nodes for name in node.outputs}
    for pin in pins:
        if WILDCARDS.isdisjoint(pin.pattern):
            yield pin, [makers[pin.pattern]] if pin.pattern in makers else []
        else:
            matches = re.compile(translate(pin.pattern)).match
            yield pin, [maker for name, maker in makers.items() if matches(name)]


def _suggest(graph: Graph, pin: Pin) -> str:
    """Operators that the pattern may have meant."""
    known = list(dict.fromkeys(name for node in graph.nodes for name in node.outputs))
    if pin.pattern in graph.tensor_table():
        fused = "" if pin.pattern in known else f"'{escape_text(pin.pattern)}' is an input or a weight; "
        return fused + f"operators have the names of their outputs: {quote_names(known)}"
    near = did_you_mean(re.sub(r"[*?\[\]]", "", pin.pattern), known)
    return (f"{near} " if near else "") + (
        f"operators have the names of their outputs, after fusion: {quote_names(known, 12)}"
    )


class PinnedOffers:
    """Reduces the candidates of pinned operators to those that their pins allow.

    Equal operators with equal pins share one tuple.
    """

    def __init__(self, graph: Graph, pins: Sequence[Pin], sites: int) -> None:
        self._pins = find_pinned(graph, pins)
        self._sites = sites
        self._known: dict[tuple[Operator, str], tuple[Candidate, ...]] = {}

    def restrict(self, node: Node, offered: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """What of `offered`, the candidates of the node's operator, its pin allows: at least one candidate.

        A pin may name a cut that is not offered. Raises UsageError for one that is not possible.
        """
        pin = self._pins.get(node.name)
        if pin is None:
            return offered
        key = node.operator, pin.cut
        if key not in self._known:
            self._known[key] = _select(node, offered, pin, self._sites)
        return self._known[key]


def _select(node: Node, offered: Sequence[Candidate], pin: Pin, sites: int) -> tuple[Candidate, ...]:
    cut, indices = parse_cut(pin), node.operator.indices
    named: dict[str, int] = {}
    replicas = cut.replicas
    for name, count in cut.counts:
        if name == REPLICAS and find_index(node.operator, name) is None:
            replicas = count
            continue
        index = _find_index(node, pin, name, count)
        if index.name in named:
            raise _refuse(node, pin, f"index '{index.name}' is named twice")
        named[index.name] = count
    used = prod(named.values())
    replicas = replicas or sites // used
    if used * replicas > sites:
        message = f"the cut takes {format_count(used * replicas, 'site')}, and there are {sites}"
        raise _refuse(node, pin, message, "the product of the counts is at most the number of sites (--devices)")
    fitting: tuple[Candidate, ...] = ()
    if cut.is_open:
        fitting = tuple(
            candidate
            for candidate in offered
            if (replicas == 1 or candidate.replicas == replicas)
            and all(
                named.get(i.name, len(index_intervals)) == len(index_intervals)
                for i, index_intervals in zip(indices, candidate.intervals, strict=True)
            )
        )
        # The paper's candidates come first in every offer. Where none of them fits, the cut as it is written is added.
        if any(len(candidate.spec.functions) == len(offered[0].spec.functions) for candidate in fitting):
            return fitting
    try:
        exact = build_candidates(node.operator, tuple(named.get(index.name, 1) for index in indices), replicas)
    except ValueError as error:
        raise _refuse(node, pin, str(error)) from None
    return fitting + tuple(candidate for candidate in exact if candidate not in fitting)


def _find_index(node: Node, pin: Pin, name: str, count: int) -> ShardableIndex:
    """The index that a pin means, after checking that it can be cut into so many intervals."""
    index_name = find_index(node.operator, name)
    index = next((index for index in node.operator.indices if index.name == index_name), None)
    if index is None:
        offers = [
            f"{_list_names(node.operator, index.name)} (up to {index.max_intervals})" for index in node.operator.indices
        ]
        listed = f"it can be cut along {', '.join(offers)}" if offers else "it cannot be cut"
        raise _refuse(node, pin, f"{node.operator.title} has no index '{escape_text(name, 60)}'", listed)
    if count > index.max_intervals:
        most = f"the most is {index.max_intervals}, of {format_count(index.extent, 'position')}"
        raise _refuse(node, pin, f"index '{index.name}' cannot be cut into {count}", most)
    return index


def _list_names(operator: Operator, index: str) -> str:
    """What a pin may call an index: its name, and the dimensions that stand for it."""
    dims = dict.fromkeys(dim for tensor in (*operator.outputs, *operator.inputs) for dim in tensor.dims)
    return " or ".join(dict.fromkeys([index, *(dim for dim in dims if find_index(operator, dim) == index)]))


def _refuse(node: Node, pin: Pin, message: str, hint: str | None = None) -> UsageError:
    return UsageError(f"pin {_quote(pin)}, operator '{escape_text(node.name)}': {message}", where=pin.where, hint=hint)


def _quote(pin: Pin) -> str:
    return f"'{escape_text(str(pin), 100)}'"
