"""From a module of torch to an archive: the only file that imports torch."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from einc.errors import Diagnostic, ModelError
from einc.importers.pytorch.aten import find_operator
from einc.importers.pytorch.constant_dims import ConstantDim, find_user_line, list_constant_dims, note_lines
from einc.importers.pytorch.recurrences import keep_recurrences
from einc_runtime.errors import MissingFault
from einc_runtime.installing import suggest_packages

JOINED_MODULE = "module"
"""What a module is called in that of its loss."""
ARGUMENTS_HINT = "give what the module is called with: args=(x,), or kwargs={'x': x}"
_DATA_HINT = (
    "what is computed, and how much, cannot depend on elements of tensors; compute both ways of an `if`, and take one "
    "by torch.where"
)
_EXPERTS_FIELD = "_experts_implementation"
"""The field of a configuration that says how experts are computed (transformers/integrations/moe.py)."""
_EXPERTS_OF_EINC = "einc"


@dataclass(frozen=True, slots=True)
class ExportedNames:
    """What the tensors of a module's result are called in the record that it returns, "" where they have numbers alone,
    and which dimensions were to be dynamic and are not."""

    results: tuple[str, ...]
    constants: tuple[ConstantDim, ...]


def export_module(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    path: str,
    without: Collection[str] = (),
) -> ExportedNames:
    """Exports a module and saves the archive at `path`.

    Operators that einc knows are kept as they are, all others are decomposed as torch decomposes them. Weights
    `without` elements have none in the archive, which is for einc alone then. Raises
    MissingFault without torch, and ModelError with torch's own words for a module that cannot be exported.
    """
    try:
        import torch
        from torch.export import default_decompositions, export
    except ImportError:
        raise MissingFault("from_torch needs torch", hint=suggest_packages("torch")) from None
    with (
        torch.no_grad(), _evaluating(module), _choose_experts(module), keep_recurrences(module),
        _flatten_results(module) as names, note_lines() as lines, warnings.catch_warnings(),
    ):  # fmt: skip
        warnings.simplefilter("ignore", FutureWarning)  # torch's, about what torch itself calls
        try:
            exported = export(module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False)
            constants = list_constant_dims(exported, lines)
            decompositions = default_decompositions()
            for operator in list(decompositions):
                if find_operator(f"torch.ops.{operator}") is not None:
                    decompositions.pop(operator)
            exported = exported.run_decompositions(decompositions)
            for name in without:
                if (weight := exported.state_dict.get(name)) is not None:
                    empty = weight.detach().new_empty(0)
                    exported.state_dict[name] = (
                        torch.nn.Parameter(empty, requires_grad=False)
                        if isinstance(weight, torch.nn.Parameter)
                        else empty
                    )
            torch.export.save(exported, path)
        except ModelError:
            raise
        except Exception as error:  # torch raises errors of many kinds for what it cannot export
            words = str(error).strip() or type(error).__name__
            problem = f"torch.export cannot export the module: {words.splitlines()[0][:300]}"
            hints = [ARGUMENTS_HINT] if isinstance(error, TypeError) and "argument" in words else []
            hints += [_DATA_HINT] if "data-dependent" in words else []
            hints += [f"it stopped in {line}"] if (line := find_user_line(error)) else []
            raise ModelError([Diagnostic(problem, hint="; ".join(hints) or None)]) from error
    return ExportedNames(tuple(names), tuple(constants))


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """A module as it is evaluated; each of its modules is in its own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _flatten_results(module: Any) -> Iterator[list[str]]:
    """While it is exported, a module returns a tuple of its tensors: torch saves no records with names. These come into
    the list."""
    from torch.utils._pytree import tree_flatten_with_path

    before, forward = vars(module).get("forward"), module.forward
    names: list[str] = []

    @functools.wraps(forward)
    def compute(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if dataclasses.is_dataclass(result) and not isinstance(result, Mapping):
            result = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        leaves, _ = tree_flatten_with_path(result)
        names[:] = [_name_result(path) for path, _ in leaves]
        return tuple(leaf for _, leaf in leaves)

    module.forward = compute
    try:
        yield names
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _name_result(path: Sequence[Any]) -> str:
    """What a tensor of a record is called: keys and fields from the first that is no number, and numbers behind it."""
    keys = [str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path]
    named = itertools.dropwhile(str.isdecimal, keys)
    return "_".join(named)


def join_loss(module: Any, loss: Callable[..., Any], count: int, keywords: Sequence[str], targets: int) -> Any:
    """The module that computes a loss of the result of `module` for its first `count` arguments and its `keywords`, and
    of as many `targets` behind the arguments. Its arguments are called as those of the module and of the loss."""
    import torch

    class WithLoss(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.add_module(JOINED_MODULE, module)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            result = module(*args[:count], **kwargs)
            try:
                return loss(result, *args[count:])
            except (TypeError, AttributeError) as error:
                if isinstance(result, torch.Tensor):
                    raise
                raise ModelError([_describe_record(result, error)]) from error

    joined = WithLoss()
    signature = _join_signatures(module.forward, getattr(loss, "forward", loss), count, keywords, targets)
    if signature is not None:
        forward: Any = functools.partial(joined.forward)
        forward.__signature__ = signature
        joined.__dict__["forward"] = forward
    return joined


def _describe_record(result: Any, error: Exception) -> Diagnostic:
    """Why a loss does not take what a module returns, if that is no tensor, and what to do."""
    is_record = dataclasses.is_dataclass(result) or isinstance(result, Mapping)
    names = [str(name) for name in (result if isinstance(result, Mapping) else vars(result))] if is_record else []
    hint = f"a function takes one of it: loss=lambda result, target: ... result{_write_access(result, names)} ..."
    if "logits" in names:
        hint += "; a model of transformers makes its own loss of labels: give it labels=... in kwargs, and no loss"
    fields = f" with {', '.join(names[:5])}" if names else ""
    problem = f"the loss does not take the module's result, a {type(result).__name__}{fields}: {str(error)[:200]}"
    return Diagnostic(problem, hint=hint)


def _write_access(result: Any, names: Sequence[str]) -> str:
    """How a function gets a tensor of a record or of a tuple."""
    if not names:
        return "[0]"
    first = "logits" if "logits" in names else names[0]
    return f".{first}" if hasattr(result, first) else f"[{first!r}]"


def _join_signatures(
    forward: Callable[..., Any], loss: Callable[..., Any], count: int, keywords: Sequence[str], targets: int
) -> inspect.Signature | None:
    """The signature of a module with its loss; None where not every argument has a name of its own."""
    try:
        named, of_loss = inspect.signature(forward).parameters, list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return None
    parameters = [*list(named.values())[:count], *of_loss[1 : 1 + targets]]
    names = [parameter.name for parameter in parameters] + list(keywords)
    is_named = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    if not is_named or len(parameters) != count + targets or len(set(names)) < len(names):
        return None
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    only = inspect.Parameter.KEYWORD_ONLY
    positional = [inspect.Parameter(parameter.name, both) for parameter in parameters]
    return inspect.Signature([*positional, *(inspect.Parameter(name, only) for name in keywords)])


def _compute_experts(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The results [tokens, d] of the experts that tokens pick, with an interface of transformers (integrations/moe.py).

    Tokens and the slots of their experts stay dimensions of their own, so that a decode step can be derived.
    """

    def project(rows: Any, name: str) -> Any:
        matrices = getattr(self, name)[top_k_index]
        turned = matrices if self.is_transposed else matrices.transpose(-1, -2)
        product = (rows.unsqueeze(-2) @ turned).squeeze(-2)
        return product + getattr(self, f"{name}_bias")[top_k_index] if self.has_bias else product

    inner = project(hidden_states.unsqueeze(1), "gate_up_proj" if self.has_gate else "up_proj")
    outer = project(self._apply_gate(inner) if self.has_gate else self.act_fn(inner), "down_proj")
    if self.has_post_expert_norm:
        outer = self.post_expert_norm(outer)
    return (outer * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)


@contextmanager
def _choose_experts(module: Any) -> Iterator[None]:
    """Models of transformers take the matrices that each token picks, and do not sort tokens by them: that is what
    einc has an operator for."""
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    interfaces = sys.modules.get("transformers.integrations.moe")
    changed = (
        [(config, getattr(config, _EXPERTS_FIELD)) for config in configs.values() if hasattr(config, _EXPERTS_FIELD)]
        if interfaces is not None
        else []
    )
    if interfaces is not None:
        interfaces.ALL_EXPERTS_FUNCTIONS.register(_EXPERTS_OF_EINC, _compute_experts)
    try:
        for config, _ in changed:
            setattr(config, _EXPERTS_FIELD, _EXPERTS_OF_EINC)
        yield
    finally:
        for config, before in changed:
            setattr(config, _EXPERTS_FIELD, before)
