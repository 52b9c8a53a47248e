"""Published models of all families that transformers has: built without weights in a process of its own, and exported.

The process (`build_published.py`) needs torch and transformers, and gets the configuration and the names of the stored
tensors. What it writes is read as any archive of torch.export is: as data. Weights are read where they lie in the
folder; what they are called there is what transformers would load.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from einc.errors import Diagnostic, ModelError, UsageError
from einc.importers.common import ENCODED_TOKENS, ImportRequest, read_element_type
from einc.importers.config import ConfigFields
from einc.importers.pytorch.archive import Elements, ExportArchive
from einc.importers.pytorch.convert import TextNames, convert_archive
from einc.importers.pytorch.stored_weights import ExportedWeights
from einc.importers.quantization import read_exported
from einc_runtime.errors import MissingFault
from einc_runtime.installing import suggest_extra
from einc_runtime.text import escape_text

NEEDED_PACKAGES = ("torch", "transformers")
MAX_BUILD_SECONDS = 900
"""Seconds of a core for building and exporting a module; the largest models take some minutes."""
MAX_BUILD_WAIT = 3600
"""Seconds on any clock, on a busy machine."""
MAX_ADDRESS_SPACE = 2**43
"""Bytes of address space: weights are allocated, and not touched; the largest models have 2**41."""
MAX_BUILD_MEMORY = 2**33
"""Bytes of memory: a model of 7 billion parameters takes 2**29, most of it for the code of torch."""
BUILT_TOKENS = 1024
"""Tokens of a text where nothing is said and the model does not bound them."""
MAX_BUILT_TOKENS = 2**20
"""Tokens of the longest text of a model that does not bound them."""
_TORCH_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
MAX_NAMED_WEIGHTS = 10
"""Weights that are named in one error."""
_STACK = "MergeModulelist"
"""What transformers calls stacking tensors, as those of experts, in a new first dimension."""
_JOIN = "Concatenate"
_NAMED_FORMS = ([(_STACK, 0)], [(_STACK, 0), (_JOIN, 1)], [(_JOIN, 0)])
"""Operations on stored tensors, with their dimensions, for which a weight's name can stand."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model text, constants that belong to it beside the folder's weights, and how many tokens a text may have."""

    text: str
    constants: Mapping[str, Elements]
    longest: int


def import_published(
    fields: ConfigFields, document: Mapping[str, Any], family: str, name: str, request: ImportRequest,
    stored: frozenset[str] | None,
) -> ExportedModel:  # fmt: skip
    """The model of a configuration, for the family of transformers that it names.

    Raises MissingFault without torch and transformers, UsageError for what a request asks in vain, and ModelError for
    what cannot be exported, or whose weights are stored otherwise than einc reads them.
    """
    if request.caches or request.batch > 1:
        option, count = "--caches" if request.caches else "--batch", request.batch
        hint = f"leave it out, and compile a step: `einc compile -D sequences={count} --step tokens=1x{count}`"
        raise UsageError(f"{option} means nothing for a model of {family}: its text reads one sequence", hint=hint)
    storage = ExportedWeights(read_exported(fields), stored)
    dtype = _TORCH_TYPES[read_element_type(fields)]
    fields.check()
    longest = find_longest(document, family, fields.where)
    tokens = request.tokens or min(BUILT_TOKENS, longest)
    if tokens > longest:
        raise UsageError(f"a model of {family} reads texts of {longest:,} tokens at most here")
    question = {
        "config": dict(document), "family": family, "architecture": None, "dtype": dtype,
        "tokens": tokens, "longest": longest, "all_logits": request.logits == "all",
    }  # fmt: skip
    return _export(fields, name, storage, question, {"last_dim0": ("sequences", 1)})


def import_built(
    fields: ConfigFields, document: Mapping[str, Any], architecture: str, name: str, request: ImportRequest,
    stored: frozenset[str] | None,
) -> ExportedModel:  # fmt: skip
    """The encoder, encoder-decoder or vision model of transformers that a configuration names. Raises as
    `import_published` does."""
    storage = ExportedWeights(read_exported(fields), stored)
    dtype = _TORCH_TYPES[read_element_type(fields)]
    fields.check()
    family = str(document["model_type"])
    longest = find_longest(document, family, fields.where)
    question = {
        "config": dict(document), "family": family, "architecture": architecture, "dtype": dtype,
        "tokens": request.tokens or min(ENCODED_TOKENS, longest), "batch": request.batch,
        "pool": request.pool, "normalize": request.normalize,
    }  # fmt: skip
    return _export(fields, name, storage, question, {})


def _export(
    fields: ConfigFields, name: str, storage: ExportedWeights, question: Mapping[str, Any],
    dims: Mapping[str, tuple[str, int]],
) -> ExportedModel:  # fmt: skip
    """The model that a process of its own makes for a question; `dims` are what dynamic dimensions are called."""
    with tempfile.TemporaryDirectory(prefix="einc-") as folder:
        path = os.path.join(folder, "module.pt2")
        answer = _ask({**question, "stored": storage.list_names(), "path": path}, fields.where)
        weights = _name_weights(answer, fields.where)
        in_files = {name.partition("[")[0] for name in weights.values()}  # without rows of a tensor
        with ExportArchive(path, fields.where) as archive:
            extents = {answer["tokens"]: "tokens"} if answer["named"] else {}
            names = TextNames(weights, tuple(answer["outputs"]), extents, dims, storage)
            converted = convert_archive(archive, name, names)
            constants = {
                **{kept: archive.read_tensor(kept) for kept in converted.stored if kept not in in_files},
                **converted.weights,
            }
    for note in converted.notes:
        fields.note(note)
    return ExportedModel(converted.text, constants, find_longest(question["config"], question["family"], fields.where))


@functools.lru_cache(maxsize=8)
def _find_longest(document: str, family: str, where: str) -> int:
    longest = _ask({"config": json.loads(document), "family": family, "path": None}, where)["longest"]
    return min(MAX_BUILT_TOKENS, longest or MAX_BUILT_TOKENS)


def find_longest(document: Mapping[str, Any], family: str, where: str) -> int:
    """How many tokens a text of such a model may have."""
    return _find_longest(json.dumps(document, sort_keys=True), family, where)


def _name_weights(answer: Mapping[str, Any], where: str) -> dict[str, str]:
    """What a text calls the stored tensors of each weight. Raises ModelError for those that it cannot name."""
    problems = [f"the weight files beside it have no '{escape_text(name, 100)}'" for name in answer["missing"]]
    names: dict[str, str] = {}
    for weight, source in answer["weights"].items():
        name = source if isinstance(source, str) else _name_parts(source)
        if name is None:
            made_of = ", ".join(escape_text(part, 60) for part in source["names"])
            shown = escape_text(weight, 100)
            problems.append(f"'{shown}' is made of {made_of} in a way that is not supported")
        else:
            names[weight] = name
    if problems:
        raise ModelError([Diagnostic(f"{where}: {problem}") for problem in problems[:MAX_NAMED_WEIGHTS]])
    return names


def _name_parts(source: Mapping[str, Any]) -> str | None:
    """`experts.*.up` for such tensors one over another, `mlp.(gate|up)` for the rows of one behind those of another,
    and `experts.*.(gate|up)` for both; None for what is made in another way."""
    form = [tuple(operation) for operation in source["operations"]]
    groups = list(source["names"].values())
    if form in ([(_STACK, 0)], [(_STACK, 0), (_JOIN, 1)]):
        parts = [_name_stack(names) for names in groups]
    else:
        parts = [names[0] if len(names) == 1 else None for names in groups]
    if None in parts or form not in _NAMED_FORMS or (len(parts) > 1) != (_JOIN in dict(form)):
        return None
    words = [str(part).split(".") for part in parts]
    if len({len(each) for each in words}) > 1:
        return None
    differing = [position for position, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
    if len(differing) != (len(parts) > 1):
        return None
    named = words[0]
    for position in differing:
        named[position] = f"({'|'.join(each[position] for each in words)})"
    return ".".join(named)


def _name_stack(names: Sequence[str]) -> str | None:
    """The name of tensors that differ in one number, from 0 on, with `*` in its place."""
    for number in sorted({int(number) for name in names for number in re.findall(r"\.(\d+)(?=\.)", name)}):
        parts = {re.sub(rf"\.{number}(?=\.)", ".*", name) for name in names if re.search(rf"\.{number}\.", name)}
        for pattern in sorted(parts):
            expected = {pattern.replace("*", str(position)) for position in range(len(names))}
            if pattern.count("*") == 1 and expected == set(names):
                return pattern
    return None


def _ask(request: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the process answers. Raises MissingFault without its packages, and ModelError with what it says."""
    if any(find_spec(package) is None for package in NEEDED_PACKAGES):
        family = request["family"]
        raise MissingFault(f"models of {family} need {' and '.join(NEEDED_PACKAGES)}", hint=suggest_extra("families"))
    document = {**request, "seconds": MAX_BUILD_SECONDS, "memory": MAX_BUILD_MEMORY, "address_space": MAX_ADDRESS_SPACE}
    command = [sys.executable, "-P", "-m", "einc.importers.pytorch.build_published"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(document).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=MAX_BUILD_WAIT, check=False,
        )  # fmt: skip
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        answer = {"error": f"it takes more than {MAX_BUILD_SECONDS} seconds or {MAX_BUILD_MEMORY >> 30} GiB"}
    if "error" in answer:
        message = f"{where}: transformers' model of this configuration cannot be imported: "
        raise ModelError([Diagnostic(message + escape_text(str(answer["error"]), 500))])
    return dict(answer)
