"""A program of its own: builds a model of transformers from a configuration, without weights, and exports it.

Its standard input is a JSON object, which `published.py` writes, and it answers with one on its last line of output. It
runs nothing but the classes of the installed transformers and loads nothing; its weights are memory that is never
touched. What it exports is an archive whose weights have no elements.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
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


def find_factory(config: Any, architecture: str | None) -> Any:
    """What makes a model of a configuration: of a class of transformers with this name, or else a causal one."""
    import transformers

    if architecture is None:
        return functools.partial(transformers.AutoModelForCausalLM.from_config, trust_remote_code=False)
    kind: Any = getattr(transformers, architecture, None)
    is_model = inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedModel)
    if not is_model:
        raise ValueError(f"transformers {transformers.__version__} has no model {architecture}")
    if kind.config_class is not type(config):
        raise ValueError(f"{architecture} is no model of the type {config.model_type}")
    return kind._from_config


def make_model(config: Any, dtype: str, architecture: str | None) -> Any:
    """The model with weights that nothing was written to, and buffers as its classes make them."""
    import torch
    from transformers.initialization import no_init_weights

    factory = find_factory(config, architecture)
    model: Any = None
    for implementation in ("sdpa", "eager"):
        try:
            with no_init_weights():
                model = factory(config, attn_implementation=implementation, dtype=getattr(torch, dtype))
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

    def forward(ids: Any, last: Any = None) -> dict[str, Any]:
        picked.clear()
        if last is not None:
            picked.update(last=last, tokens=ids.shape[0])
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        return {"logits": embedding(picked["last"], logits) if "last" in picked else logits}

    module = torch.nn.Module()
    module.published, module.forward = model, forward
    return module


IMAGE_SIZE = 224
"""Height and width of images where a configuration says nothing: those of ImageNet."""
_TEXT_NAMES = {
    "ids": "input_ids", "mask": "attention_mask", "decoder_ids": "decoder_input_ids", "pixels": "pixel_values",
    "features": "input_features",
}  # fmt: skip
"""What a text calls the arguments of a model."""


def make_inputs(model: Any, batch: int, tokens: int) -> dict[str, Any]:
    """Inputs of a model that is not causal, by their names in a text: `ids` [batch, tokens], a `mask` that is true for
    what is no padding, `decoder_ids` of a decoder behind an encoder, `pixels` [batch, channels, height, width] of
    images, and `features` [batch, bins, frames] of sounds."""
    import torch

    config = model.config
    taken = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    if "input_ids" in taken:
        inputs["ids"] = torch.ones(batch, tokens, dtype=torch.int64)
        if "attention_mask" in taken:
            inputs["mask"] = torch.ones(batch, tokens, dtype=torch.bool)
    if "pixel_values" in taken:
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or IMAGE_SIZE
        height, width = size if isinstance(size, list | tuple) else (size, size)
        inputs["pixels"] = torch.zeros(batch, vision.num_channels, height, width, dtype=model.dtype)
    if "input_features" in taken:
        frames = 2 * config.max_source_positions  # its convolutions halve them
        inputs["features"] = torch.zeros(batch, config.num_mel_bins, frames, dtype=model.dtype)
    if "decoder_input_ids" in taken:
        inputs["decoder_ids"] = torch.ones(batch, tokens, dtype=torch.int64)
    return inputs


def wrap_with_inputs(model: Any, names: Iterable[str], pool: str | None, *, normalize: bool) -> Any:
    """The model as a module that takes inputs by their names in a text, and returns its tensors by theirs; with `pool`,
    a vector for each text, the mean of its last hidden states or the first, as the `embedding`."""
    import torch

    def forward(**inputs: Any) -> dict[str, Any]:
        arguments = {_TEXT_NAMES[name]: tensor for name, tensor in inputs.items()}
        if "mask" in inputs:
            arguments["attention_mask"] = inputs["mask"].to(torch.int64)
        results = model(**arguments, return_dict=True)
        if pool is None:
            return {name: value for name, value in results.items() if isinstance(value, torch.Tensor)}
        if "mask" not in inputs or "last_hidden_state" not in results:
            raise ValueError("--pool is for encoders of texts that return their last hidden states")
        hidden = results["last_hidden_state"]
        counts = inputs["mask"].to(hidden.dtype)[..., None]
        vectors = hidden[:, 0] if pool == "cls" else (hidden * counts).sum(1) / counts.sum(1).clamp(min=1)
        return {"embedding": torch.nn.functional.normalize(vectors) if normalize else vectors}

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    module = torch.nn.Module()
    module.published, module.forward = model, forward
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
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
            targets = converter.target_patterns
            if operations == [["Chunk", 0]] and targets[0] in renamed:  # rows of one tensor for each of several weights
                for part, target in enumerate(targets):
                    weight = renamed.replace(targets[0], target)
                    rows = len(state[weight])
                    sources[weight] = f"{name}[{part * rows}:{part * rows + rows}]"
                continue
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
    architecture = request["architecture"]
    model = make_model(config, request["dtype"], architecture)
    stored = request["stored"]
    sources = name_weights(model, model.state_dict() if stored is None else stored)
    extents = {n for tensor in model.state_dict().values() for n in tensor.shape}
    tokens, kwargs, shapes = request["tokens"], None, None
    args: list[Any] = []
    if architecture is not None:
        kwargs = make_inputs(model, request["batch"], tokens)
        module = wrap_with_inputs(model, kwargs, request["pool"], normalize=request["normalize"])
    else:
        near = range(tokens, min(tokens + 8, request["longest"]) + 1)
        tokens = next((count for count in near if count not in extents), tokens)  # like no other dimension
        args = [torch.zeros(tokens, dtype=torch.int64)]
        if not request["all_logits"]:
            args.append(torch.tensor([tokens - 1, tokens - 2]))
            shapes = (None, {0: torch.export.Dim.DYNAMIC})
        module = wrap(model, all_logits=request["all_logits"])
    weights = {f"published.{name}" for name in sources}
    outputs = export_module(module, args, kwargs, shapes, request["path"], without=weights).results
    return {
        "tokens": tokens,
        "named": architecture is None or tokens not in extents,
        "outputs": outputs,
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
