"""What an operator of a decode step reads and makes: the forms that tensors of a model have in its step."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import make_unique
from einc.ops.base import Operator


class Dependence(enum.Enum):
    """What a tensor without a dimension of tokens is made of."""

    NONE = "nothing that has tokens"
    LAST = "the last tokens"


@dataclass(frozen=True, slots=True)
class Pairs:
    """The dimensions of a tensor along which new tokens run (queries), and all tokens so far (keys). Nothing is known
    of what it has for keys behind a query, unless this `is_zero`."""

    queries: int
    keys: int
    is_zero: bool = False


TokenForm = int | Dependence | Pairs
"""The dimension of a tensor along which tokens run, both of them where it has pairs of tokens, or what it is made of
where there is none. The dimension may have more positions than there are tokens (of a padded convolution): those behind
the last token are not computed."""


class Source(enum.Enum):
    """What an operator of a step reads of a tensor."""

    SAME = "the tensor of the step: new tokens, or what has none"
    CACHE = "all tokens so far"
    APART = "all tokens so far, with a dimension of the sequences before that of their tokens"
    SEEN = "all tokens so far, and zeros behind the last"
    STATE = "all tokens so far, one sequence after another: with one dimension before and one behind"
    POOL = "the same as they lie in the state: in blocks, if it has some"
    ROWS = "the rows of the new tokens' positions"
    POSITIONS = "the positions of the new tokens"
    BLOCKS = "the numbers of the blocks of each sequence"
    WINDOW = "of each new token, what stands at a few tokens before it and at itself"
    COUNTED = "which of the new tokens go on from the token before"
    CARRIED = "what was carried up to the token before"


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """The places of a token and of so many `before` it; `outside` is what stands before the first token of a text."""

    before: int
    outside: str


@dataclass(frozen=True, slots=True)
class StepInput:
    """An input of an operator of a step: input `number` of the operator of the model; `axis` is the dimension of tokens
    where the source is CACHE, APART, SEEN, STATE, POOL, WINDOW or ROWS. Of CARRIED, the number is that of the carry."""

    source: Source
    number: int = 0
    axis: int = 0
    window: TokenWindow | None = None


@dataclass(frozen=True, slots=True)
class StepCarry:
    """What an operator of a step takes over from the run before: its form, in which `axis` is the dimension of
    sequences, if there are several; what it is before the first token, a number or an input of the model's operator and
    the dimensions of the form that this has; and the `along` dimension of the further result of the operator that has
    it after each new token."""

    desc: TensorDesc
    axis: int | None
    initial: str | tuple[int, tuple[int, ...]]
    along: int


@dataclass(frozen=True, slots=True)
class StepForm:
    """The operator of a step, what it reads, and the forms of its results. Behind these, it has a result for each of
    its `carries`. Where several sequences are `apart` in it, each result has a dimension of them before that of tokens;
    so has an input of which this says that axis."""

    operator: Operator
    inputs: tuple[StepInput, ...]
    results: tuple[TokenForm, ...]
    carries: tuple[StepCarry, ...] = ()
    apart: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheBlocks:
    """So many blocks, which all sequences share, with the places of so many tokens each."""

    count: int
    size: int


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens of a model and those of a step: the name of the dimension, the lengths of the packed sequences in the
    model, the new tokens of each, how many `sequences` the step has of a model that reads one, and the blocks in which
    its caches lie, if sequences do not have places of their own."""

    dimension: str
    model_lens: tuple[int, ...]
    new: int
    sequences: int = 1
    blocks: CacheBlocks | None = None

    @property
    def lens(self) -> tuple[int, ...]:
        """The lengths of the sequences, which are packed in the caches of the step."""
        return self.model_lens * self.sequences

    @property
    def model_extent(self) -> int:
        """All tokens of the model."""
        return sum(self.model_lens)

    @property
    def extent(self) -> int:
        """All tokens of the caches."""
        return sum(self.lens)

    @property
    def new_extent(self) -> int:
        """All new tokens."""
        return self.new * len(self.lens)

    @property
    def new_lens(self) -> tuple[int, ...]:
        return (self.new,) * len(self.lens)

    @property
    def positions(self) -> TensorDesc:
        """Where each new token stands in its own sequence."""
        return TensorDesc((self.dimension,), (self.new_extent,), DType.I64)

    @property
    def counted(self) -> TensorDesc:
        """Which new tokens count: those of each sequence, if there are several."""
        desc = TensorDesc((self.dimension,), (self.new_extent,), DType.BOOL)
        return self.divide(desc, 0) if self.sequences > 1 else desc

    @property
    def table(self) -> TensorDesc:
        """The numbers of the blocks of each sequence, in the order of its tokens."""
        size = 1 if self.blocks is None else self.blocks.size
        return TensorDesc(("sequences", "blocks"), (self.sequences, self.model_extent // size), DType.I64)

    def keep(self, desc: TensorDesc, axis: int) -> TensorDesc:
        """The tensor as a cache of all tokens, along `places`; so no dimension of new tokens has the same name."""
        dims = make_unique((*desc.dims[:axis], "places", *desc.dims[axis + 1 :]))
        return replace(desc, dims=dims, shape=(*desc.shape[:axis], self.extent, *desc.shape[axis + 1 :]))

    def divide(self, desc: TensorDesc, axis: int) -> TensorDesc:
        """A tensor of the step, with the sequences as a dimension before that of their tokens."""
        dims = make_unique((*desc.dims[:axis], "sequences", *desc.dims[axis:]))
        shape = (*desc.shape[:axis], self.sequences, desc.shape[axis] // self.sequences, *desc.shape[axis + 1 :])
        return replace(desc, dims=dims, shape=shape)

    def keep_apart(self, desc: TensorDesc, axis: int) -> TensorDesc:
        """The tensor as a cache of all tokens, with the sequences as a dimension."""
        return self.divide(self.keep(desc, axis), axis)

    def flatten(self, desc: TensorDesc, axis: int) -> TensorDesc:
        """The tensor with the tokens of one sequence after another: what stands before these, they, and what stands
        behind."""
        before, behind = desc.dims[:axis], desc.dims[axis + 1 :]
        names = (before[0] if len(before) == 1 else "before", behind[0] if len(behind) == 1 else "behind")
        shape = (math.prod(desc.shape[:axis]), self.extent, math.prod(desc.shape[axis + 1 :]))
        return TensorDesc(make_unique((names[0], "places", names[1])), shape, desc.dtype)

    def carry(self, width: int, dtype: DType) -> TensorDesc:
        """A state of what each sequence carries, so many numbers: in the row of its own number, or of its first
        block."""
        rows = self.sequences if self.blocks is None else self.blocks.count
        return TensorDesc(("carried", "rows", "width"), (1, rows, width), dtype)

    def divide_windows(self, desc: TensorDesc, axis: int, window: TokenWindow) -> TensorDesc:
        """The tensor with the windows of new tokens: a dimension of their places behind that of the tokens."""
        dims = make_unique((*desc.dims[: axis + 1], "window", *desc.dims[axis + 1 :]))
        shape = (*desc.shape[:axis], self.new_extent, window.before + 1, *desc.shape[axis + 1 :])
        return replace(desc, dims=dims, shape=shape)

    def keep_windows(self, desc: TensorDesc, axis: int, window: TokenWindow) -> TensorDesc:
        """A state of the last rows of each sequence and a spare one, by its number or that of its first block."""
        rows = self.sequences if self.blocks is None else self.blocks.count
        flat = self.flatten(desc, axis)
        return replace(flat, shape=(flat.shape[0], rows * (window.before + 1), flat.shape[2]))

    def pool(self, desc: TensorDesc) -> TensorDesc:
        """A state, from this cache with tokens along its second dimension: the same, or the places of all blocks."""
        extent = self.extent if self.blocks is None else self.blocks.count * self.blocks.size
        return replace(desc, shape=(desc.shape[0], extent, desc.shape[2]))

    def shorten(self, desc: TensorDesc, form: TokenForm) -> TensorDesc:
        """The tensor with new tokens alone."""
        if isinstance(form, Dependence):
            return desc
        form = form.queries if isinstance(form, Pairs) else form
        return replace(desc, shape=(*desc.shape[:form], self.new_extent, *desc.shape[form + 1 :]))


def read_same(forms: Sequence[TokenForm]) -> tuple[StepInput, ...]:
    """Each tensor of the step, in the order of the operator's inputs."""
    return tuple(StepInput(Source.SAME, number) for number in range(len(forms)))


def require_single(tokens: StepTokens, does: str) -> None:
    """Raises OperatorError where the model packs several sequences, for an operator that counts through all of them."""
    if len(tokens.model_lens) > 1:
        raise OperatorError(f"{does}, counted through all {len(tokens.model_lens)} packed sequences")


def require_rows(tokens: StepTokens) -> None:
    """Raises OperatorError where there are several sequences, and a result has no dimension for their last tokens."""
    if tokens.sequences > 1:
        raise OperatorError(
            "reads the last token, which each sequence has: several need a lookup by an input, embedding(last, ...)"
        )
