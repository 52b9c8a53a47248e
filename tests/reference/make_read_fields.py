"""Asks transformers which fields of a configuration it reads, and which causal families it has; writes
`einc/importers/read_fields.py` and `einc/importers/causal_families.py`.

A field is read by a family if its configuration class declares it, or if code of the family, or code that all families
share, takes it from a configuration. Nothing is run: the sources are parsed. `make references` runs this.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import quantization_config

from einc.importers.families import DECODER_FAMILIES

SOURCES = Path(transformers.__file__).parent
IMPORTERS = Path(__file__).parents[2] / "einc" / "importers"
SHARED = ("configuration_utils.py", "masking_utils.py", "modeling_utils.py", "modeling_layers.py")
ROTARY = "modeling_rope_utils.py"
QUANTIZERS = {
    "gptq": "GPTQConfig", "awq": "AwqConfig", "compressed-tensors": "CompressedTensorsConfig",
    "fp8": "FineGrainedFP8Config", "mxfp4": "Mxfp4Config",
}  # fmt: skip
"""The class of each method of quantization."""
SCHEME = """actorder block_structure dynamic format group_size input_activations num_bits observer observer_kwargs
output_activations scale_dtype strategy symmetric targets type weights zp_dtype"""
"""Fields of a scheme of compressed-tensors, a library of its own."""
HEADING = '''"""The fields of configurations that transformers {version} reads: no other changes what it computes.

Written by tests/reference/make_read_fields.py: do not edit.
"""

from __future__ import annotations

'''
CAUSAL_HEADING = '''"""The causal models that transformers {version} has: the architecture of each `model_type`.

Written by tests/reference/make_read_fields.py: do not edit.
"""

from __future__ import annotations

CAUSAL_ARCHITECTURES = {
'''


def list_config_fields(path: Path) -> set[str]:
    """The fields that a source takes from a `config`, by an attribute or by `getattr`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            names.add(node.attr)
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and is_config(node.args[0])
        ):
            names |= {node.args[1].value} if isinstance(node.args[1], ast.Constant) else set()
    return {name for name in names if not hasattr(transformers.PreTrainedConfig, str(name)) or is_plain(name)}


def is_config(node: ast.expr) -> bool:
    return re.fullmatch(r"(self\.)?(text_)?config", ast.unparse(node)) is not None


def is_plain(name: str) -> bool:
    """Whether a name of the base class is that of a value, and not of a method."""
    return not callable(getattr(transformers.PreTrainedConfig, name))


def list_declared_fields(path: Path) -> set[str]:
    """The fields that the classes in a source declare, set, or know under another name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            names.add(node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "attribute_map":
            names |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("kwargs.pop", "kwargs.get"):
            names |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    return {name for name in names if not hasattr(transformers.PreTrainedConfig, str(name)) or is_plain(name)}


def list_rotary_fields() -> set[str]:
    """The strings that code of rotary embeddings looks for in `rope_parameters`, and the names that it declares."""
    text = (SOURCES / ROTARY).read_text(encoding="utf-8")
    return set(re.findall(r"""(?:rope_parameters|rope_scaling|rope_params)\w*(?:\.get\(|\[)["'](\w+)["']""", text)) | {
        node.target.id for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }  # fmt: skip


def list_tables() -> Iterator[tuple[str, set[str]]]:
    shared = set().union(*(list_config_fields(SOURCES / name) for name in SHARED))
    shared |= list_declared_fields(SOURCES / SHARED[0])
    yield "shared", shared
    yield "rotary", list_rotary_fields()
    yield "scheme", set(SCHEME.split())
    for method, name in QUANTIZERS.items():
        yield method, set(inspect.signature(getattr(quantization_config, name)).parameters) - {"kwargs"}
    for kind in (*DECODER_FAMILIES, "bert"):
        folder = SOURCES / "models" / kind.removesuffix("_text").replace("-", "_")
        names: set[str] = set()
        for path in sorted(folder.glob("modeling_*.py")):
            names |= list_config_fields(path)
        for path in sorted(folder.glob("configuration_*.py")):
            names |= list_declared_fields(path)
        yield kind, names - shared


def main() -> None:
    lines = [HEADING.format(version=transformers.__version__), "_WORDS = {\n"]
    for kind, names in list_tables():
        words = " ".join(sorted(name for name in map(str, names) if not name.startswith("_")))
        wrapped = textwrap.wrap(words, 105)
        ends = [" "] * (len(wrapped) - 1) + [""]
        quoted = [f'"{line}{end}"\n' for line, end in zip(wrapped, ends, strict=True)]
        body = "(\n        " + "        ".join(quoted) + "    )" if len(quoted) > 1 else quoted[0].strip()
        lines.append(f'    "{kind}": {body},\n')
    lines += ["}\n", "READ_FIELDS = {kind: frozenset(words.split()) for kind, words in _WORDS.items()}\n"]
    lines.append(
        '"""By what reads them: a method of quantization, a family (its `model_type`), or what all have in common."""\n'
    )
    (IMPORTERS / "read_fields.py").write_text("".join(lines), encoding="utf-8")
    families = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())
    table = "".join(f'    "{family}": "{architecture}",\n' for family, architecture in families) + "}\n"
    heading = CAUSAL_HEADING.replace("{version}", transformers.__version__)
    (IMPORTERS / "causal_families.py").write_text(heading + table, encoding="utf-8")


if __name__ == "__main__":
    main()
