"""A program of its own: builds a causal model of transformers from a configuration, without weights, and exports it.

Its standard input is a JSON object, which `published.py` writes, and it answers with one on its last line of output. It
runs nothing but the classes of the installed transformers and loads nothing; its weights are memory that is never
touched. What it exports is an archive whose weights have no elements.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

_CHOSEN_HERE = frozenset((
    "auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation",
    "use_kernels", "kernel_config", "quantization_config", "use_cache", "dtype", "torch_dtype",
))  # fmt: skip
"""Fields that name code to be loaded, or how something is computed and not what."""


def clean(value: Any) -> Any:
    """A configuration without those fields, in all of its objects."""
    if isinstance(value, dict):
        return {name: clean(item) for name, item in value.items() if name not in _CHOSEN_HERE}
    return [clean(item) for item in value] if isinstance(value, list) else value


def make_config(document: Mapping[str, Any], family: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[family].from_dict(clean(document))


def find_longest(config: Any) -> int | None:
    """The tokens of the longest text that the model is made for; None where nothing bounds it.

    Rates of rotation that change with the length of a text are those of short texts.
    """
    text_config = config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    lengths = [value for name in names if isinstance(value := getattr(text_config, name, None), int) and value > 0]
    rotations = getattr(text_config, "rope_parameters", None) or {}
    for rotation in [rotations, *rotations.values()] if isinstance(rotations, dict) else []:
        if isinstance(rotation, dict) and rotation.get("rope_type") in ("longrope", "dynamic"):
            lengths.append(int(rotation.get("original_max_position_embeddings") or lengths[0]))
    return min(lengths, default=None)


def make_model(config: Any, dtype: str) -> Any:
    """The model with weights that nothing was written to, and buffers as its classes make them."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    factory: Any = transformers.AutoModelForCausalLM
    model: Any = None
    for implementation in ("sdpa", "eager"):
        try:
            with no_init_weights():
                model = factory.from_config(
                    config, attn_implementation=implementation, dtype=getattr(torch, dtype), trust_remote_code=False
                )
            break
        except (ValueError, ImportError):
            if implementation == "eager":
                raise
    model.tie_weights()
    with torch.no_grad():
        for part in model.modules():
            if any(True for _ in part.buffers(recurse=False)) and not list(part.parameters(recurse=False)):
                model._init_weights(part)  # as transformers makes buffers that files do not have
    return model.eval()


def wrap(model: Any, *, all_logits: bool) -> Any:
    """The model as a module from `ids` [tokens] and `last` [n] to the logits after these tokens, or after all."""
    import torch
    from torch.nn.functional import embedding

    picked: dict[str, Any] = {}

    def pick(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        hidden = args[0]
        if "last" not in picked or hidden.dim() != 3 or hidden.shape[1] != picked["tokens"]:
            return None
        return (embedding(picked.pop("last"), hidden[0])[None], *args[1:])

    if (head := model.get_output_embeddings()) is not None and not all_logits:
        head.register_forward_pre_hook(pick)  # so that no other logits are computed
    if isinstance(table := model.get_input_embeddings(), torch.nn.Embedding):  # looks up the input as it is
        table.register_forward_pre_hook(lambda _, args: (args[0][0],) if args[0].dim() == 2 else None)
        table.register_forward_hook(lambda _, args, rows: rows[None])

    def forward(ids: Any, last: Any = None) -> Any:
        picked.clear()
        if last is not None:
            picked.update(last=last, tokens=ids.shape[0])
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        return embedding(picked["last"], logits) if "last" in picked else logits

    module = torch.nn.Module()
    module.published, module.forward = model, forward
    return module


def name_weights(model: Any, stored: Iterable[str]) -> dict[str, Any]:
    """Which stored tensors each parameter and buffer is made of, as transformers loads them: a name, or a list of
    patterns with the names that fit each, and what is done with them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state = model.state_dict()
    mapping = get_model_conversion_mapping(model) or []
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    sources: dict[str, Any] = {}
    for name in sorted(stored):
        renamed, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if renamed not in state and name in state:
            renamed, pattern = name, None
        if renamed not in state:
            continue
        if pattern is None:
            sources[renamed] = name
        elif not isinstance(sources.get(renamed), str):
            converter = by_pattern[pattern]
            operations = [[type(part).__name__, getattr(part, "dim", None)] for part in converter.operations]
            names: dict[str, list[str]] = {source: [] for source in converter.source_patterns}
            entry = sources.setdefault(renamed, {"operations": operations, "names": names})
            entry["names"][pattern].append(name)
    tied: dict[tuple[int, Any], list[str]] = {}
    for name, tensor in state.items():
        tied.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    for group in tied.values():  # tied weights have several names, of which files have one
        known = next((sources[name] for name in group if name in sources), None)
        if known is not None:
            sources.update((name, known) for name in group if name not in sources)
    return sources


def export(request: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from huggingface_hub import constants

    from einc.importers.pytorch.exporting import export_module

    constants.HF_HUB_OFFLINE = True
    config = make_config(request["config"], request["family"])
    if request["path"] is None:
        return {"longest": find_longest(config)}
    model = make_model(config, request["dtype"])
    stored = request["stored"]
    sources = name_weights(model, model.state_dict() if stored is None else stored)
    longest, extents = request["longest"], {n for tensor in model.state_dict().values() for n in tensor.shape}
    near = range(request["tokens"], min(request["tokens"] + 8, longest) + 1)
    tokens = next((count for count in near if count not in extents), request["tokens"])  # like no other dimension
    args, shapes = [torch.zeros(tokens, dtype=torch.int64)], None
    if not request["all_logits"]:
        args.append(torch.tensor([tokens - 1, tokens - 2]))
        shapes = (None, {0: torch.export.Dim.DYNAMIC})
    module = wrap(model, all_logits=request["all_logits"])
    weights = {f"published.{name}" for name in sources}
    export_module(module, args, None, shapes, request["path"], without=weights)
    return {
        "tokens": tokens,
        "weights": {f"published.{name}": source for name, source in sources.items()},
        "missing": [name for name, _ in model.named_parameters() if name not in sources],
    }


def watch_memory(limit: int) -> None:
    """Ends the process when its memory has been more than this: buffers are computed, and may have any size."""
    unit = 1 if sys.platform == "darwin" else 1024
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit <= limit:
        time.sleep(0.1)
    os._exit(1)


def main() -> None:
    answer = sys.stdout
    sys.stdout = sys.stderr  # what packages print is no answer
    request = json.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"] + 1))
    with contextlib.suppress(ValueError, OSError):  # macOS refuses it; the memory is watched in any case
        resource.setrlimit(resource.RLIMIT_AS, (request["address_space"], request["address_space"]))
    threading.Thread(target=watch_memory, args=(request["memory"],), daemon=True).start()
    try:
        result = export(request)
    except MemoryError:
        result = {"error": "its sizes need more memory than its weights do"}
    except Exception as error:  # configurations that their classes refuse, and modules that torch cannot export
        diagnostics = getattr(error, "diagnostics", ())
        words = (diagnostics[0].message if diagnostics else str(error).strip()) or type(error).__name__
        result = {"error": " ".join(words.split())[:500]}
    answer.write(json.dumps(result) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()
