"""Plans of decode steps: what their tensors say of how many sequences and tokens they take, and what they return."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.errors import PlanFault
from einc_runtime.plan.index_programs import read_index_program
from einc_runtime.plan.states import find_updates
from einc_runtime.text import quote_names

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle, Operation

LIKELY_TOKEN, LIKELY_LOGIT = "likely_token", "likely_logit"
"""The outputs of plans that find the most likely token of each row of logits, with its logit."""
DRAWN_TOKEN = "drawn_token"
"""The output of plans that draw tokens: -1 where top-p needs more tokens than a list has."""
DRAW_SETTINGS, DRAW_KEYS = "draw_settings", "draw_keys"
"""The inputs of these plans (`draws`)."""
_INPUTS = frozenset(("ids", "positions", "cache_places", "cache_blocks", "last", DRAW_SETTINGS, DRAW_KEYS))
_CARRIED_SIZE = 128
"""The tokens of a block in plans without caches, which have no places: a sequence is known by its first block."""
_DIVIDED_RANK = 4
"""The dimensions of a cache whose blocks are gathered: before, blocks, tokens of each, behind."""


@dataclass(frozen=True)
class DecodePlan:
    """A session that takes `length` new tokens for each of `slots` sequences, which may have `places` tokens each.

    Their caches lie in `blocks` blocks of `block_size` tokens.
    """

    session: Session
    slots: int
    length: int
    places: int
    blocks: int
    block_size: int
    inputs: tuple[str, ...]
    finds_likely: bool
    """Whether it finds the most likely tokens."""
    draws: bool
    """Whether it draws tokens, and may run again."""
    carries: bool
    """Whether it goes on from more than caches: a run is not repeated then, and a text is read from its beginning."""

    @cached_property
    def last(self) -> Array:
        """The last of the tokens of each sequence [slots], among all."""
        return np.arange(self.length - 1, self.slots * self.length, self.length)

    @staticmethod
    def of(session: Session) -> DecodePlan:
        """Reads the sizes from the plan; raises PlanFault if it is not that of a decode step."""
        bundle = session.bundle
        shapes = {tensor.name: tensor.shape for tensor in bundle.tensors}
        operation = next((candidate for candidate in bundle.operations if _is_cached(bundle, candidate)), None)
        states = set(find_updates(bundle.operations).values())
        carries = len(states) < sum(number in states for reader in bundle.operations for number in set(reader.inputs))
        inputs = tuple(tensor.name for tensor in session.inputs)
        if (
            not {"ids", "cache_blocks", "logits"} <= shapes.keys()
            or (operation is None and not carries)
            or not {*inputs} <= _INPUTS
        ):
            raise PlanFault(
                f"{bundle.model} is no decode step over blocks: it has the inputs {quote_names(inputs)}, where ids, "
                "cache_places and cache_blocks have to be, positions and last may be, and logits are what it returns",
                hint="einc compile MODEL.ein --step tokens=1x8,blocks=65x128 makes the plan of one",
            )
        slots, each = shapes["cache_blocks"]
        if shapes["ids"][0] % slots or shapes["logits"][0] not in (slots, shapes["ids"][0]):
            raise PlanFault(f"{bundle.model} has {shapes['ids'][0]} ids and {shapes['logits'][0]} logits of {slots}")
        size = _CARRIED_SIZE if operation is None else _find_block_size(bundle)
        if operation is None:  # states with a row for each block are those with the fewest
            count = min(bundle.tensors[number].shape[1] for number in states)
        else:
            count = shapes[bundle.tensors[operation.inputs[0]].name][1] // size
        outputs = {tensor.name for tensor in session.outputs}
        finds_likely = {LIKELY_TOKEN, LIKELY_LOGIT} <= outputs
        draws = {DRAWN_TOKEN, LIKELY_LOGIT} <= outputs and not carries
        length = shapes["ids"][0] // slots
        return DecodePlan(session, slots, length, each * size, count, size, inputs, finds_likely, draws, carries)

    @property
    def memory(self) -> tuple[int, int, int]:
        """The sizes of caches, in which plans agree that work on the same ones."""
        return self.places, self.blocks, self.block_size


def _is_cached(bundle: Bundle, operation: Operation) -> bool:
    """Whether an operation appends tokens to a cache that lies in blocks."""
    return operation.family == "append" and bundle.tensors[operation.inputs[2]].name == "cache_places"


def _find_block_size(bundle: Bundle) -> int:
    """The tokens of a block, from an operation that reads the table of blocks."""
    table = next(number for number, tensor in enumerate(bundle.tensors) if tensor.name == "cache_blocks")
    for operation in bundle.operations:
        if table in operation.inputs and operation.family == "attention":
            lengths = operation.attributes["k_lens"]
            assert isinstance(lengths, list)
            return int(lengths[0]) // bundle.tensors[table].shape[1]
        if table in operation.inputs and len(bundle.tensors[operation.inputs[0]].shape) == _DIVIDED_RANK:
            return bundle.tensors[operation.inputs[0]].shape[2]
    raise PlanFault(f"{bundle.model} has a table of blocks that no operation reads")


def count_tokens(bundle: Bundle) -> int:
    """How many tokens a model knows that looks up `ids` in tables."""
    counts = (_count_rows(bundle, operation) for operation in bundle.operations if operation.family == "index")
    return min((count for count in counts if count), default=0)


def _count_rows(bundle: Bundle, operation: Operation) -> int:
    """The rows of the table in which an index program looks up `ids`; 0 if it does not."""
    inputs = [bundle.tensors[number] for number in operation.inputs]
    shapes = tuple(tuple(tensor.shape) for tensor in inputs)
    lookup = read_index_program(lambda name, _: operation.attributes[name], shapes).lookup
    if lookup is None or inputs[lookup.ids].name != "ids":
        return 0
    return inputs[lookup.table].shape[lookup.dim]
