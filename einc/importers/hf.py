"""From the configuration of a Hugging Face model to a text of the model language.

The architecture that the configuration names decides what is computed. Code that comes with a model is never run, and a
field that this importer does not know is an error: it may change the model. Causal families that have no entry here are
built from their configuration by transformers, without weights, and exported (`pytorch/published.py`), and so are
encoders, encoder-decoders and vision models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from einc.errors import UsageError
from einc.importers import decoders, encoders
from einc.importers.causal_families import CAUSAL_ARCHITECTURES
from einc.importers.common import HARMLESS_FIELDS, ImportRequest
from einc.importers.config import ConfigFields, parse_config
from einc.importers.decoder_text import LAST_COMMENT, write_decoder
from einc.importers.decoders import read_decoder
from einc.importers.encoders import read_encoder, write_encoder
from einc.importers.writing import StoredNames, comment_lines, make_name
from einc_runtime.strict_json import describe_json
from einc_runtime.text import escape_text

if TYPE_CHECKING:
    from einc.importers.arrays.values import Elements


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model's text, and what its user may want to know about it: defaults that were taken, what was left out.

    `longest` is the number of tokens that a text may have. `constants` are weights that the folder does not have.
    """

    architecture: str
    text: str
    notes: tuple[str, ...]
    longest: int = 0
    constants: Mapping[str, Elements] = field(default_factory=dict)


BUILT_KINDS = frozenset((
    "albert", "bart", "beit", "bert", "blenderbot", "camembert", "clip", "convnext", "convnextv2",
    "data2vec-vision", "deberta", "deberta-v2", "deit", "dinov2", "dinov2_with_registers", "distilbert",
    "electra", "esm", "eurobert", "focalnet", "ibert", "ijepa", "layoutlm", "longt5", "m2m_100", "marian",
    "mbart", "megatron-bert", "mobilebert", "mobilenet_v1", "mobilenet_v2", "mobilevit", "modernbert", "mpnet",
    "mt5", "mvp", "nllb-moe", "nomic_bert", "pegasus", "plbart", "prophetnet", "regnet", "rembert", "resnet",
    "roberta", "roformer", "segformer", "siglip", "squeezebert", "swiftformer", "swin", "swinv2", "t5",
    "t5gemma", "umt5", "vit", "vit_msn", "whisper", "xlm-roberta", "xlm-roberta-xl", "yoso",
))  # fmt: skip
"""Model types that are no causal models, and whose models transformers builds for einc
(tests/importers/data/torch_architectures.json has how they compare)."""
_CLASS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,79}")

_DEFAULT_ARCHITECTURES = {
    **{family: name for name, family in decoders.DECODER_ARCHITECTURES.items()},
    "bert": "BertModel",
}


def import_hf(
    config: bytes, where: str, name: str, request: ImportRequest, stored: frozenset[str] | None
) -> ImportedModel:
    """The model that a config.json describes.

    `where` names the configuration in messages, `name` is what the model should be called; `stored` are the names of
    the tensors in its weight files, None where it has none. Raises ModelError with everything that is wrong, or that
    einc does not support.
    """
    document = parse_config(config, where)
    fields = ConfigFields(document, where, request.ignored)
    if (family := find_exported_family(document)) is not None:
        return _import_exported(fields, document, family, name, request, stored)
    architecture = _read_architecture(fields)
    files = StoredNames(stored, fields)
    longest = 0
    source = "its config.json" if where.endswith("config.json") else "a GGUF file"
    lines = comment_lines(f"{escape_text(name)}: {architecture or 'a model'}, imported from {source}.", "")
    if architecture is not None:
        decodes = architecture in decoders.DECODER_ARCHITECTURES
        for option in decoders.ENCODER_OPTIONS if decodes else encoders.DECODER_OPTIONS:
            if getattr(request, option):
                raise UsageError(f"--{option} means nothing for a {architecture}")
        if decodes:
            kind = decoders.DECODER_ARCHITECTURES[architecture]
            decoder = read_decoder(fields, kind)
            fields.check_unknown(HARMLESS_FIELDS, "shared", kind)
            longest = min(decoder.longest, decoder.rotary.longest)
            lines += write_decoder(decoder, request, files, make_name(name), fields)
        else:
            encoder = read_encoder(fields, encoders.ENCODER_OUTPUTS[architecture])
            longest = encoder.longest
            fields.check_unknown(HARMLESS_FIELDS, "shared", "bert")
            lines += write_encoder(encoder, request, files, make_name(name), fields)
    fields.check()
    return ImportedModel(architecture or "", "\n".join(lines) + "\n", tuple(fields.notes), longest)


def import_model(
    config: bytes, where: str, name: str, request: ImportRequest, stored: frozenset[str] | None
) -> ImportedModel:
    """As `import_hf`, and encoders, encoder-decoders and vision models that transformers builds, too."""
    document = parse_config(config, where)
    if (architecture := find_built_architecture(document)) is None:
        return import_hf(config, where, name, request, stored)
    from einc.importers.pytorch.published import import_built

    for option in ("caches", "logits", "segments"):
        if getattr(request, option):
            raise UsageError(f"--{option} means nothing for a {architecture}")
    fields = ConfigFields(document, where, request.ignored)
    model = import_built(fields, document, architecture, make_name(name), request, stored)
    lines = comment_lines(
        f"{escape_text(name)}: {architecture}, as transformers builds it from its config.json.",
        *(
            ["`mask` is true where a text has a token and false where it is filled up."]
            if "input mask" in model.text
            else []
        ),
        "",
    )
    return ImportedModel(
        architecture, "\n".join(lines) + "\n" + model.text, tuple(fields.notes), model.longest, model.constants
    )


def find_built_architecture(document: Mapping[str, Any]) -> str | None:
    """The architecture of a configuration that is no causal model, has no entry here, and that transformers builds."""
    kind, listed = document.get("model_type"), document.get("architectures")
    if (
        not isinstance(kind, str)
        or kind not in BUILT_KINDS
        or not isinstance(listed, list)
        or find_exported_family(document) is not None
    ):
        return None
    first = next((name for name in listed if isinstance(name, str) and _CLASS_NAME.fullmatch(name)), None)
    return None if first in encoders.ENCODER_OUTPUTS else first


def find_longest(config: bytes, where: str, ignored: tuple[str, ...] = ()) -> int:
    """How many tokens a text may have. Raises as `import_hf` does."""
    document = parse_config(config, where)
    if (family := find_exported_family(document)) is None:
        return import_hf(config, where, "model", ImportRequest(tokens=2, ignored=ignored), None).longest
    from einc.importers.pytorch.published import find_longest as ask

    return ask(document, family, where)


def find_exported_family(document: Mapping[str, Any]) -> str | None:
    """The family of a configuration whose model transformers builds; None where there is an entry here, or no such
    family."""
    kind, listed = document.get("model_type"), document.get("architectures")
    if not isinstance(kind, str) or kind in _DEFAULT_ARCHITECTURES or kind not in CAUSAL_ARCHITECTURES:
        return None
    return kind if listed is None or (isinstance(listed, list) and CAUSAL_ARCHITECTURES[kind] in listed) else None


def _import_exported(
    fields: ConfigFields, document: Mapping[str, Any], family: str, name: str, request: ImportRequest,
    stored: frozenset[str] | None,
) -> ImportedModel:  # fmt: skip
    from einc.importers.pytorch.published import import_published

    architecture = CAUSAL_ARCHITECTURES[family]
    for option in decoders.ENCODER_OPTIONS:
        if getattr(request, option):
            raise UsageError(f"--{option} means nothing for a {architecture}")
    model = import_published(fields, document, family, make_name(name), request, stored)
    lines = comment_lines(
        f"{escape_text(name)}: {architecture}, as transformers builds it from its config.json.",
        "A step of decoding is derived from this text: `einc compile --step tokens=1`.",
        *([] if request.logits == "all" else [LAST_COMMENT]),
        "",
    )
    text = "\n".join(lines) + "\n" + model.text
    return ImportedModel(architecture, text, tuple(fields.notes), model.longest, model.constants)


def _read_architecture(fields: ConfigFields) -> str | None:
    """The architecture that is to be imported; None where there is none that einc knows."""
    kind, listed = fields.value("model_type"), fields.value("architectures")
    known = {*decoders.DECODER_ARCHITECTURES, *encoders.ENCODER_OUTPUTS}
    if listed is not None:
        if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
            fields.fail(f"architectures: expected a list of names, found {describe_json(listed)}")
            return None
        architecture = next((name for name in listed if name in known), listed[0])
        if len(listed) > 1:
            fields.note(f"architectures: {escape_text(architecture, 80)}, of {len(listed)} names")
        if architecture not in known:
            hint = f"supported are {_list_supported()}"
            start = "`einc models copy llama` is a text to start from"
            fields.fail(f"architectures: {describe_json(architecture)} is not supported", f"{hint}; {start}")
            return None
        family = decoders.DECODER_ARCHITECTURES.get(architecture, "bert")
        if kind is not None and kind != family:
            fields.fail(f"model_type: expected {family!r} for a {architecture}, found {describe_json(kind)}")
        return str(architecture)
    if kind is None:
        fields.fail("model_type and architectures are missing", "this may be no configuration of a model")
        return None
    if not isinstance(kind, str) or kind not in _DEFAULT_ARCHITECTURES:
        if isinstance(kind, str) and kind in BUILT_KINDS:
            fields.fail("architectures is missing", 'list the class that the weights are of, as in ["ViTModel"]')
        else:
            fields.fail(f"model_type: {describe_json(kind)} is not supported", f"supported are {_list_supported()}")
        return None
    fields.note(f"architectures is not given: {_DEFAULT_ARCHITECTURES[kind]}")
    return _DEFAULT_ARCHITECTURES[kind]


def _list_supported() -> str:
    """For a hint: the types that have an entry here by name, and how many more transformers builds."""
    count = len(CAUSAL_ARCHITECTURES.keys() - _DEFAULT_ARCHITECTURES.keys()) + len(BUILT_KINDS)
    return f"{', '.join(_DEFAULT_ARCHITECTURES)}, and {count} more types that transformers builds (docs/importing.md)"
