"""From the configuration of a Hugging Face model to a text of the model language.

The architecture that the configuration names decides what is computed. Code that comes with a model is never run, and a
field that this importer does not know is an error: it may change the model.
"""

from __future__ import annotations

from einc.errors import UsageError
from einc.importers import decoder_text, decoders, encoders
from einc.importers.common import HARMLESS
from einc.importers.families import FAMILIES
from einc.importers.fields import Fields, parse
from einc.importers.request import Imported, Request
from einc.importers.stored import Stored
from einc.importers.writing import comment, name_of
from einc_runtime.strict_json import describe_json
from einc_runtime.text import printable

_DEFAULTS = {**{family: name for name, family in decoders.ARCHITECTURES.items()}, "bert": "BertModel"}


def import_hf(config: bytes, where: str, name: str, request: Request, stored: frozenset[str] | None) -> Imported:
    """The model that a config.json describes.

    `where` names the configuration in messages, `name` is what the model should be called; `stored` are the names of
    the tensors in its weight files, None where it has none. Raises ModelError with everything that is wrong, or that
    einc does not support.
    """
    document = parse(config, where)
    fields = Fields(document, where)
    architecture = _architecture(fields)
    files = Stored(stored, fields)
    lines = comment(f"{printable(name)}: {architecture or 'a model'}, imported from its config.json.", "")
    if architecture is not None:
        decodes = architecture in decoders.ARCHITECTURES
        reader, writer = (decoders, decoder_text) if decodes else (encoders, encoders)
        for option in reader.FOREIGN:
            if getattr(request, option):
                raise UsageError(f"--{option} means nothing for a {architecture}")
        model = reader.read(fields, reader.ARCHITECTURES[architecture])
        fields.check_unknown(HARMLESS, request.ignored)
        lines += writer.text(model, request, files, name_of(name), fields)
    fields.check()
    return Imported(architecture or "", "\n".join(lines) + "\n", tuple(fields.notes))


def _architecture(fields: Fields) -> str | None:
    """The architecture that is to be imported; None where there is none that einc knows."""
    kind, listed = fields.value("model_type"), fields.value("architectures")
    known = {*decoders.ARCHITECTURES, *encoders.ARCHITECTURES}
    if listed is not None:
        if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], str):
            fields.fail(f"architectures: expected a list of one name, found {describe_json(listed)}")
            return None
        (architecture,) = listed
        if architecture not in known:
            hint = f"supported are language models of {', '.join(FAMILIES)}, and encoders of bert"
            start = "`einc models copy llama` is a text to start from"
            fields.fail(f"architectures: {describe_json(architecture)} is not supported", f"{hint}; {start}")
            return None
        family = decoders.ARCHITECTURES.get(architecture, "bert")
        if kind is not None and kind != family:
            fields.fail(f"model_type: expected {family!r} for a {architecture}, found {describe_json(kind)}")
        return str(architecture)
    if kind is None:
        fields.fail("model_type and architectures are missing", "this may be no configuration of a model")
        return None
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        fields.fail(f"model_type: {describe_json(kind)} is not supported", f"supported are {', '.join(_DEFAULTS)}")
        return None
    fields.note(f"architectures is not given: {_DEFAULTS[kind]}")
    return _DEFAULTS[kind]
