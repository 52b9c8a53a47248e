"""Which tokens a step computes: what is asked for, and what a model says of its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from einc.errors import UsageError
from einc.graph.graph import Graph, TensorKind
from einc.ops.step_forms import CacheBlocks, StepTokens
from einc.ops.steps import find_sequence_lengths
from einc_runtime.text import did_you_mean


@dataclass(frozen=True, slots=True)
class StepRequest:
    """So many new tokens of each sequence along a dimension of the model; how many sequences there are, where the
    model reads one; and the blocks in which caches lie, where sequences have no places of their own."""

    dimension: str
    tokens: int
    sequences: int = 1
    blocks: CacheBlocks | None = None


def find_step_tokens(graph: Graph, request: StepRequest) -> StepTokens:
    """What the model says of the tokens that are asked for."""
    name = request.dimension
    for tensor in graph.tensors:
        if tensor.kind is TensorKind.STATE:
            raise UsageError(
                f"{graph.name} is a step already: it has the state '{tensor.name}'",
                hint="a step is derived from a model that reads whole sequences",
            )
    inputs = [tensor.desc for tensor in graph.tensors if tensor.kind is TensorKind.INPUT]
    extents = {extent for desc in inputs for dim, extent in zip(desc.dims, desc.shape, strict=True) if dim == name}
    if len(extents) != 1:
        dims = sorted({dim for desc in inputs for dim in desc.dims})
        raise UsageError(
            f"{'no input' if not extents else 'not each input'} of {graph.name} has "
            f"{'a dimension' if not extents else 'the same extent of'} '{name:.80}'",
            hint=did_you_mean(name, dims) or f"the dimensions of its inputs are {', '.join(dims)[:200] or 'none'}",
        )
    (extent,) = extents
    lengths = {lens for node in graph.nodes if (lens := find_sequence_lengths(node.operator)) and sum(lens) == extent}
    if len(lengths) > 1:
        raise UsageError(f"operators of {graph.name} pack the {extent} tokens in different ways")
    (lens,) = lengths or {(extent,)}
    if request.sequences > 1 and len(lens) > 1:
        raise UsageError(
            f"{graph.name} packs {len(lens)} sequences itself; a step has several of a model that reads one",
            hint=f"make the model of one sequence (import it without --batch): the step has {request.sequences} of it",
        )
    if not 1 <= request.tokens <= min(lens) or extent < 2:
        raise UsageError(
            f"a step of {request.tokens} new tokens does not fit '{name}' with {min(lens)} tokens of a sequence",
            hint="the model is built with as many tokens as the states have room for, at least 2: -D makes it longer",
        )
    tokens = StepTokens(name, lens, request.tokens, request.sequences, request.blocks)
    if request.blocks is not None:
        _require_blocks(tokens, request.blocks)
    return tokens


def _require_blocks(tokens: StepTokens, blocks: CacheBlocks) -> None:
    """Raises UsageError for blocks that sequences do not fill."""
    if len(tokens.model_lens) > 1:
        raise UsageError("caches lie in blocks in steps of a model that reads one sequence")
    if blocks.size < 1 or tokens.model_extent % blocks.size or blocks.count * blocks.size < tokens.new_extent:
        raise UsageError(
            f"{blocks.count} blocks of {blocks.size} tokens do not fit {tokens.sequences} sequences of "
            f"{tokens.model_extent} tokens, of which {tokens.new} are new",
            hint="the tokens of a block divide those of a sequence, and there is room for all new ones",
        )
