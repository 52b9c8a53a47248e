"""The errors of a model, collected so that all are reported together, and hints at what may have been meant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from einc.errors import MAX_FINDINGS, Diagnostic, ModelError, OperatorError, SourceSpan
from einc.frontend.tokens import SEPARATOR, STATEMENT_WORDS, SpannedToken, quote_token
from einc_runtime.text import did_you_mean

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class AlreadyReported(Exception):
    """Leaves a statement whose error is among the findings already."""


class Findings:
    """The errors of one model, each once, in the order of the text."""

    def __init__(self) -> None:
        self._diagnostics: dict[tuple[SourceSpan, str], Diagnostic] = {}

    def __bool__(self) -> bool:
        return bool(self._diagnostics)

    def __len__(self) -> int:
        return len(self._diagnostics)

    def add(self, message: str, span: SourceSpan, hint: str | None = None) -> None:
        """Note an error. The same error at the same place counts once, however often a block is applied."""
        self._diagnostics.setdefault((span, message), Diagnostic(message, span, hint))

    def fail(self, message: str, span: SourceSpan, hint: str | None = None) -> AlreadyReported:
        """Note an error; the caller raises what this returns."""
        self.add(message, span, hint)
        return AlreadyReported()

    @contextmanager
    def locate_errors(self, at: SourceSpan | Callable[[int | str | None], SourceSpan]) -> Iterator[None]:
        """Makes an OperatorError an error at this place, or at that of the argument which it is about."""
        try:
            yield
        except OperatorError as error:
            span = at if isinstance(at, SourceSpan) else at(error.argument)
            raise self.fail(error.message, span, error.hint) from None

    def move(self, first: int, span: SourceSpan, name: str) -> None:
        """Puts errors after the first ones, which were found in the text of a block, at the call of the block."""
        for key in list(self._diagnostics)[first:]:
            diagnostic = self._diagnostics.pop(key)
            inner = key[0]
            hint = "; ".join(filter(None, (diagnostic.hint, f"in {inner.file}:{inner.line}: `{inner.text.strip()}`")))
            self.add(f"{name}: {diagnostic.message}", span, hint)

    def check(self) -> None:
        """Raises ModelError with all errors noted so far, if there are any."""
        if not self._diagnostics:
            return
        ordered = sorted(self._diagnostics.values(), key=_order_key)
        if len(ordered) >= MAX_FINDINGS:
            ordered = [*ordered[:MAX_FINDINGS], Diagnostic("there may be more errors; fix these first")]
        raise ModelError(ordered)


def _order_key(diagnostic: Diagnostic) -> tuple[bool, int, int]:
    """The order of the text; errors in definitions from the command line, which are not in the text, come first."""
    span = diagnostic.span
    assert span is not None
    return (bool(span.file), span.line, span.column)


def evaluate_each(evaluate: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """What `evaluate` returns for every item. All items report their errors; raises AlreadyReported if any has one."""
    results = []
    for item in items:
        with suppress(AlreadyReported):
            results.append(evaluate(item))
    if len(results) < len(items):
        raise AlreadyReported
    return results


# -- syntax errors ----------------------------------------------------------------------------------------------------

_WRITTEN = {
    "LPAR": "'('", "RPAR": "')'", "LSQB": "'['", "RSQB": "']'", "_LBRACE": "'{'", "_RBRACE": "'}'",
    "_COMMA": "','", "_COLON": "':'", "_EQUAL": "'='", "_FROM": "'from'", "_AS": "'as'",
    "NAME": "a name", "STRING": "a string", SEPARATOR: "the end of the line",
}  # fmt: skip
_EXPRESSION = frozenset({"NAME", "INTEGER", "FLOAT", "STRING", "TRUE", "FALSE", "LSQB", "LPAR", "MINUS"})
_COMPARISON_TOKENS = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_OPERATOR_TOKENS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT", "POWER"}) | _COMPARISON_TOKENS


def describe_expected(terminals: Collection[str]) -> str:
    """`a name, ')' or ','`: the terminals in words; some groups of terminals have one name."""
    remaining = set(terminals)
    words = []
    if remaining >= STATEMENT_WORDS:
        remaining -= STATEMENT_WORDS | {"NAME", SEPARATOR, "$END"}
        words.append("a statement")
    if remaining >= _EXPRESSION:
        remaining -= _EXPRESSION
        words.append("an expression")
    if remaining & _OPERATOR_TOKENS:
        remaining -= _OPERATOR_TOKENS
        words.append("an operator")
    words += [_WRITTEN.get(terminal, terminal.lower()) for terminal in sorted(remaining)]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"


def describe_found(token: SpannedToken) -> str:
    if token.type == SEPARATOR:
        if token == ";":
            return "';'"
        return "the end of the line" if token else "the end of the text"
    if token.type in STATEMENT_WORDS or token.type in ("_FROM", "_AS"):
        return f"the word {quote_token(token)}"
    return quote_token(token)


def suggest_syntax(start: list[SpannedToken], token: SpannedToken, terminals: Collection[str]) -> str | None:
    """What may help; `start` are the tokens of the statement before the faulty one."""
    first = start[0] if start else token
    if token.type in STATEMENT_WORDS and "NAME" in terminals:
        return f"{quote_token(token)} is a word of the language and cannot be a name"
    if first.type == "NAME" and len(start) == 1 and token.type == "NAME":
        return did_you_mean(first, (word.lower() for word in STATEMENT_WORDS))
    if first.type == "NAME" and len(start) == 1 and token.type == "LPAR":
        return "the result of a call needs a name: `y = ...`"
    if token.type in _COMPARISON_TOKENS and "_EQUAL" not in terminals:
        return "comparisons do not chain; put parentheses around one of them"
    if {"RPAR", "RSQB"} & set(terminals) and start and token.span.line > start[-1].span.line:
        return f"a bracket is still open after line {start[-1].span.line}"
    if token.type == "_EQUAL" and "_COLON" in terminals:
        return f"a tensor is declared as `{first.lower()} name : dtype[dims]`"
    if first.type == "OUTPUT" and len(start) == 2 and token.type == "LPAR":
        return f"name the result: `output y = {start[1]}(...)`"
    if "LSQB" in [lexeme.type for lexeme in start] and token.type == "_COLON" and first.type not in ("PARAM", "DIM"):
        return "there are no ranges in brackets; `slice(x, rows=[0, 1])` takes positions"
    return None


# -- names from other libraries ---------------------------------------------------------------------------------------

_SHAPE = "`reshape(x, rows=4, columns=5)` gives the same elements new dimensions"
_PRODUCT_HINT = "`matmul(a, b)` multiplies matrices, an index equation anything: `y[i, k] = a[i, j] * b[j, k]`"
_CONSTANT = "numbers stand in expressions (`x + 1.0`), and positions in equations: `y[i = 8] = i`"
_LOOKUP = '`gather(x, positions, "dim")`, or `embedding(ids, table)` for rows of a table'
_SCATTER = '`scatter_add(x, positions, "dim", 8)`, or an equation: `y[n = 8] = sum[e](where(to[e] == n, x[e], 0.0))`'
_CONVOLUTION = "`conv1d(x, kernel)`, `conv2d(x, kernel)`, or an equation: `y[t = 8] = x[t + r] * kernel[r]`"
_MAX, _MIN = '`max(a, b)`, or `max(x, over="dim")`', '`min(a, b)`, or `min(x, over="dim")`'

FOREIGN_CALLS: Mapping[str, str] = {
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze"), _SHAPE),
    **dict.fromkeys(("einsum", "dot", "bmm", "mm", "linear"), _PRODUCT_HINT),
    **dict.fromkeys(("zeros", "ones", "full", "arange", "range", "iota"), _CONSTANT),
    **dict.fromkeys(("take", "index_select"), _LOOKUP),
    **dict.fromkeys(("maximum", "amax", "reduce_max"), _MAX),
    **dict.fromkeys(("minimum", "amin", "reduce_min"), _MIN),
    **dict.fromkeys(("cat", "stack"), '`concat(a, b, over="dim")`'),
    **dict.fromkeys(("scatter", "index_add", "segment_sum"), _SCATTER),
    **dict.fromkeys(("conv", "convolution", "unfold"), _CONVOLUTION),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), "`clip(x, 0.0, 1.0)`, `max(x, 0.0)`, `min(x, 1.0)`"),
    **dict.fromkeys(("arctan", "arctan2"), "`atan(x)`, `atan2(y, x)`"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "`bitand(i, j)`, `bitor(i, j)`, `bitxor(i, j)`"),
    **dict.fromkeys(("left_shift", "right_shift"), "`shiftleft(i, n)`, `shiftright(i, n)`"),
    **dict.fromkeys(("rint", "fix"), "`round(x)` with ties to even, `trunc(x)` towards 0"),
    **dict.fromkeys(("sort", "argsort"), '`topk(x, 5, "dim")` gives the largest in descending order, and their places'),
    **dict.fromkeys(("split", "chunk", "narrow"), "`slice(x, dim=[start, stop])`"),
    **dict.fromkeys(
        ("expand", "broadcast_to", "tile"), "elementwise operands are broadcast by the names of dimensions"
    ),
    "onehot": "`one_hot(positions, 8)`",
    "dropout": "a plan runs what has been trained: leave it out",
    "permute": '`transpose(x, "dim", ...)` takes all dimensions in their new order',
    "scaled_dot_product_attention": "`attention(q, k, v, causal=true)`",
}

FOREIGN_NAMES: Mapping[str, str] = dict.fromkeys(
    ("nan", "infinity"), "numbers are finite; -1e30 (-60000.0 in f16) is low enough to count for nothing in a softmax"
)
"""The same for names that are not those of operators."""
