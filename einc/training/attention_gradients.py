"""The gradient of attention, from its saved log-sum-exp (T. Dao et al., FlashAttention, 2022), in index equations.

With the shares p = exp(s - lse) of the scores s, and D = sum(do * o) - dlse for each query:

    dv = p^T do        ds = p * (do v^T - D)        dq = scale * (ds k)        dk = scale * (ds^T q)

Of 16-bit floats, scores, shares and do v^T are f32; shares and ds are rounded before the products with do, q and k, as
FlashAttention does. The scale is no part of products, which libraries have of 16-bit floats without one. Query
heads that share keys are beside their queries in scores, so that sums over both are along one dimension.

Sequences of equal length are a dimension; otherwise all pairs of a query and a key are computed, and those of different
sequences are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from einc.errors import OperatorError
from einc.ops.attention import Attention
from einc.training.joins import reshape
from einc.training.tape import NodeGradient

_QUERY_INDICES = "h, g, b, q"
"""Heads of keys, the query heads that share each, sequences, and queries."""
_SCORE_INDICES = "h, b, g, q, k"


def differentiate_attention(node: NodeGradient) -> None:
    """Adds the gradients of queries, keys and values."""
    operator = node.operator
    assert isinstance(operator, Attention)
    group, sequences = operator.queries.shape[0] // operator.keys.shape[0], _count_sequences(operator)
    q, o, lse, k, v = (
        _unpack(node, name, sequences, group if name_has_queries else 0)
        for name, name_has_queries in (
            (node.node.inputs[0], True),
            (node.node.outputs[0], True),
            (node.node.outputs[1], True),
            (node.node.inputs[1], False),
            (node.node.inputs[2], False),
        )
    )
    scale = repr(operator.scale)
    scores = node.write(f"s[{_SCORE_INDICES}] = sum[d](q[{_QUERY_INDICES}, d] * k[h, b, k, d])", q=q, k=k)
    score = f"{scale} * s[{_SCORE_INDICES}]"
    if operator.softcap:
        score = f"{operator.softcap!r} * tanh({score} / {operator.softcap!r})"
        scores, score = node.write(f"c[{_SCORE_INDICES}] = {score}", s=scores), f"s[{_SCORE_INDICES}]"
    seen, tensors = _say_what_is_seen(node, operator, sequences)
    share = f"exp({score} - lse[{_QUERY_INDICES}])"
    if seen:
        share = f"where({seen}, {share}, 0.0)"
    shares = node.write(f"p[{_SCORE_INDICES}] = {share}", s=scores, lse=lse, **tensors)
    do = None if node.outputs[0] is None else _unpack(node, node.outputs[0], sequences, group)
    if node.needs[2] and do is not None:
        text = f"dv[h, b, k, e] = sum[g, q](p[{_SCORE_INDICES}] * o[{_QUERY_INDICES}, e])"
        _put(node, 2, node.write(text, p=_round(node, shares), o=_round(node, do)))
    if not (node.needs[0] or node.needs[1]):
        return
    terms, tensors_of_slope = [], {"p": shares}
    if do is not None:
        tensors_of_slope["g"] = node.write(
            f"g[{_SCORE_INDICES}] = sum[e](o[{_QUERY_INDICES}, e] * v[h, b, k, e])", o=do, v=v
        )
        tensors_of_slope["d"] = node.write(
            f"d[{_QUERY_INDICES}] = sum[e](g[{_QUERY_INDICES}, e] * o[{_QUERY_INDICES}, e])", g=do, o=o
        )
        terms.append(f"g[{_SCORE_INDICES}] - d[{_QUERY_INDICES}]")
    if node.outputs[1] is not None:
        tensors_of_slope["l"] = _unpack(node, node.outputs[1], sequences, group)
        terms.append(f"l[{_QUERY_INDICES}]")
    slope = f"p[{_SCORE_INDICES}] * ({' + '.join(terms)})"
    if operator.softcap:
        tensors_of_slope["s"] = scores
        slope = f"{slope} * (1.0 - s[{_SCORE_INDICES}] * s[{_SCORE_INDICES}] / {operator.softcap**2!r})"
    if seen:  # what nobody sees may be anything, also not a number
        slope = f"where({seen}, {slope}, 0.0)"
    ds = node.write(f"ds[{_SCORE_INDICES}] = {slope}", **tensors_of_slope, **tensors)
    ds, k, q = (_round(node, name) for name in (ds, k, q))
    if node.needs[0]:
        product = node.write(f"dq[{_QUERY_INDICES}, d] = sum[k](s[{_SCORE_INDICES}] * k[h, b, k, d])", s=ds, k=k)
        _put(node, 0, node.write(f"dq[{_QUERY_INDICES}, d] = {scale} * p[{_QUERY_INDICES}, d]", p=product))
    if node.needs[1]:
        product = node.write(f"dk[h, b, k, d] = sum[g, q](s[{_SCORE_INDICES}] * q[{_QUERY_INDICES}, d])", s=ds, q=q)
        _put(node, 1, node.write(f"dk[h, b, k, d] = {scale} * p[h, b, k, d]", p=product))


def _count_sequences(operator: Attention) -> int:
    """The extent of the dimension of sequences: 1 where they have different lengths."""
    have_equal_lengths = len(set(operator.q_lens)) == 1 == len(set(operator.k_lens))
    return len(operator.q_lens) if have_equal_lengths else 1


def _unpack(node: NodeGradient, name: str, sequences: int, group: int) -> str:
    """[heads, tokens, ...] as [heads, group, sequences, tokens, ...], or without a group where it is 0; in f32 at
    least."""
    name = node.widen(name)
    desc = node.desc(name)
    (heads, tokens), widths = desc.shape[:2], desc.shape[2:]
    shared = (heads // group, group) if group else (heads,)
    names = (("h", "g") if group else ("h",)) + ("b", "t") + ("e",) * len(widths)
    return reshape(node.builder, name, names, (*shared, sequences, tokens // sequences, *widths))


def _round(node: NodeGradient, name: str) -> str:
    """The tensor in the type of the queries, if that is narrower: the products of matrices have it."""
    dtype = node.operator.inputs[0].dtype
    return node.call("cast", name, dtype=dtype.value) if dtype.itemsize < node.desc(name).dtype.itemsize else name


def _put(node: NodeGradient, k: int, gradient: str) -> None:
    desc = node.operator.inputs[k]
    node.put(k, reshape(node.builder, gradient, desc.dims, desc.shape))


def _say_what_is_seen(node: NodeGradient, operator: Attention, sequences: int) -> tuple[str, dict[str, str]]:
    """The condition under which a query sees a key, empty where it always does, and the tensors in it."""
    conditions: list[str] = []
    tensors: dict[str, str] = {}
    names = dict(zip(operator.extras, node.node.inputs[3:], strict=True))
    packed = len(operator.q_lens) > sequences
    if packed:
        tensors["qn"], tensors["kn"] = (write_sequence_numbers(node, x) for x in (operator.q_lens, operator.k_lens))
        conditions.append("qn[q] == kn[k]")
    if operator.causal or operator.window or "spans" in names:
        query_place, key = _say_places(node, operator, sequences, tensors)
        conditions += [f"{key} <= {query_place}"] if operator.causal else []
        conditions += [f"{query_place} - {key} < {operator.window}"] if operator.window else []
        if "spans" in names:
            shape = (sequences, operator.queries.shape[1] // sequences, 2)
            spans = reshape(node.builder, names["spans"], ("b", "q", "ends"), shape)
            tensors["sp"] = node.call("cast", spans, dtype="i64")
            conditions += [f"{key} >= sp[b, q, 0]", f"{key} < sp[b, q, 1]"]
    if "mask" in names:
        tensors["m"] = reshape(
            node.builder, names["mask"], ("b", "k"), (sequences, operator.keys.shape[1] // sequences)
        )
        conditions.append("m[b, k]")
    text = conditions[0] if conditions else ""
    for condition in conditions[1:]:
        text = f"and({text}, {condition})"
    return text, tensors


def _say_places(node: NodeGradient, operator: Attention, sequences: int, tensors: dict[str, str]) -> tuple[str, str]:
    """Where a query and a key are in their sequence, in terms of `q` and `k`."""
    packed = len(operator.q_lens) > sequences
    starts = [0, *accumulate(operator.k_lens)][:-1]
    key = "k"
    if packed:
        tensors["ks"] = write_by_sequence(node, operator.k_lens, starts)
        key = "(k - ks[k])"
    if operator.positions is not None:
        name = node.node.inputs[3 + operator.extras.index("positions")]
        shape = (sequences, operator.queries.shape[1] // sequences)
        tensors["at"] = node.call("cast", reshape(node.builder, name, ("b", "q"), shape), dtype="i64")
        return "at[b, q]", key
    if packed:
        pairs = zip(operator.q_lens, operator.k_lens, [0, *accumulate(operator.q_lens)][:-1], strict=True)
        tensors["qs"] = write_by_sequence(node, operator.q_lens, [k - q - start for q, k, start in pairs])
        return "(q + qs[q])", key
    return f"(q + {operator.k_lens[0] - operator.q_lens[0]})", key


MAX_LENGTHS = 200
"""The most sequences of different lengths: an index equation compares each token with all their ends, in four steps
each, and has at most 1,000."""


def write_by_sequence(node: NodeGradient, lens: Sequence[int], values: Sequence[int]) -> str:
    """Integers [tokens]: each token has the value of its sequence."""
    if len(lens) > MAX_LENGTHS:
        raise OperatorError(f"packs {len(lens)} sequences of different lengths; at most {MAX_LENGTHS} are supported")
    terms = [f"0 * i + {values[0]}"]
    for end, (before, value) in zip(accumulate(lens), pairwise(values), strict=False):
        terms.append(f"where(i >= {end}, {value - before}, 0 * i)")
    return node.write(f"number[i = {sum(lens)}] = {' + '.join(terms)}")


def write_sequence_numbers(node: NodeGradient, lens: Sequence[int]) -> str:
    """Integers [tokens]: the number of the sequence of each token."""
    if len(set(lens)) == 1:
        return node.write(f"number[i = {sum(lens)}] = i // {lens[0]}")
    return write_by_sequence(node, lens, range(len(lens)))
