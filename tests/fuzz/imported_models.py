"""Models in files of others, to be fuzzed: GGUF, ONNX and archives of torch.export, read as the commands read them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.mutation import copy_tree, mutate_bytes, mutate_tree

MAX_TEXT = 20_000
"""Characters of a model text that is built, too: larger ones only take longer."""


@contextlib.contextmanager
def file_of(data: bytes) -> Iterator[str]:
    """A path at which a reader finds these bytes; they are in memory alone."""
    descriptor = os.memfd_create("input")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@lru_cache(maxsize=1 << 16)
def _build(text: str) -> None:
    """Builds a model text, once: many mutations change weights alone, or nothing that is read."""
    from einc.frontend import build

    if len(text) < MAX_TEXT:
        build(text, "m.ein")


# GGUF. A tree has the entries of metadata as [key, type, value], and tensors as [name, extents, type, place].

_NUMBER_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


def seed_gguf() -> list[bytes]:
    from tests.support import gguf_models

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
             "head_dim": 16, "num_key_value_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
             "vocab_size": 8, "rope_parameters": {"rope_theta": 1e4}}  # fmt: skip
    layer = {"input_layernorm": (32,), "post_attention_layernorm": (32,), "self_attn.q_proj": (32, 32),
             "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32),
             "mlp.gate_proj": (32, 32), "mlp.up_proj": (32, 32), "mlp.down_proj": (32, 32)}  # fmt: skip
    experts = {f"block_sparse_moe.experts.{n}.w{k}": (32, 32) for n in range(2) for k in (1, 3, 2)}
    kinds = {
        "llama": layer,
        "qwen3": layer | {"self_attn.q_norm": (16,), "self_attn.k_norm": (16,)},
        "gemma": layer,
        "mixtral": {n: s for n, s in layer.items() if "mlp" not in n} | {"block_sparse_moe.gate": (2, 32)} | experts,
    }
    words = {"tokenizer.ggml.tokens": [*"abcde", "ab", "<s>", "</s>"], "tokenizer.ggml.token_type": [1] * 6 + [3, 3],
             "tokenizer.ggml.bos_token_id": 6, "tokenizer.ggml.eos_token_id": 7,
             "tokenizer.chat_template": "{{ messages }}"}  # fmt: skip
    bytes_ = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.merges": ["a b"]}
    pieces = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [float(-n) for n in range(8)]}
    parts = []
    rng = np.random.default_rng(1)
    for kind, shapes in kinds.items():
        shapes = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
        shapes |= {"model.embed_tokens.weight": (8, 32), "model.norm.weight": (32,), "lm_head.weight": (8, 32)}
        weights = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
        further = words | (bytes_ if kind == "qwen3" else pieces)
        config = sizes | {"model_type": kind, "num_local_experts": 2 * (kind == "mixtral"), "num_experts_per_tok": 1}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m.gguf")
            type_ = {"llama": "Q8_0", "qwen3": "Q4_0", "gemma": "F16", "mixtral": "Q5_1"}[kind]
            gguf_models.write_model(config, weights, path, type_, further=further)
            parts.append(path.read_bytes())
    return parts


class _Unparsed(Exception):
    """The bytes are not those of a file whose parts are known."""


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + form, self.data, self.at)
        except struct.error:
            raise _Unparsed from None
        self.at += struct.calcsize("<" + form)
        return value

    def text(self) -> str:
        length = self.take("Q")
        if length > len(self.data) - self.at:
            raise _Unparsed
        self.at += length
        return self.data[self.at - length : self.at].decode("latin-1")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind in _NUMBER_FORMS:
            return self.take(_NUMBER_FORMS[kind])
        if kind != _LIST:
            raise _Unparsed
        inner, count = self.take("I"), self.take("Q")
        if count > len(self.data) or inner == _LIST:
            raise _Unparsed
        return [inner, [self.value(inner) for _ in range(count)]]


@cache
def parse_gguf(data: bytes) -> tuple[Any, bytes]:
    """The tree of a file's header, and all bytes after it."""
    cursor = _Cursor(data)
    version, tensors, keys = (cursor.take("4s"), cursor.take("I"))[1], cursor.take("Q"), cursor.take("Q")
    if max(tensors, keys) > len(data):
        raise _Unparsed
    entries = [[cursor.text(), kind := cursor.take("I"), cursor.value(kind)] for _ in range(keys)]
    described = [
        [
            cursor.text(),
            [cursor.take("Q") for _ in range(min(cursor.take("I"), 99))],
            cursor.take("I"),
            cursor.take("Q"),
        ]
        for _ in range(tensors)
    ]
    return {"version": version, "entries": entries, "tensors": described}, data[-(-cursor.at // 32) * 32 :]


def format_gguf(tree: Any, remainder: bytes) -> bytes:
    """A file of a tree; raises what Python raises for a tree that a mutation has made no file of."""

    def text(value: str) -> bytes:
        data = value.encode("latin-1", "replace")
        return struct.pack("<Q", len(data)) + data

    def value_of(kind: int, value: Any) -> bytes:
        if kind == _TEXT:
            return text(value)
        if kind == _LIST:
            return struct.pack("<IQ", value[0], len(value[1])) + b"".join(value_of(value[0], each) for each in value[1])
        return struct.pack("<" + _NUMBER_FORMS[kind], value)

    head = b"GGUF" + struct.pack("<IQQ", tree["version"], len(tree["tensors"]), len(tree["entries"]))
    for key, kind, value in tree["entries"]:
        head += text(key) + struct.pack("<I", kind) + value_of(kind, value)
    for name, extents, kind, begin in tree["tensors"]:
        head += text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, begin)
    return head + b"\0" * (-len(head) % 32) + remainder


def mutate_gguf(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Most mutations change the header alone, and leave it one that can be read."""
    if rng.random() < 0.85:
        with contextlib.suppress(
            _Unparsed, struct.error, TypeError, KeyError, ValueError, AttributeError, IndexError, OverflowError
        ):
            tree, remainder = parse_gguf(data)
            tree = copy_tree(tree)
            variants = []
            with contextlib.suppress(_Unparsed):
                variants = [parse_gguf(rng.choice(donors))[0]]
            mutate_tree(tree, rng, variants)
            return format_gguf(tree, remainder)
    return mutate_bytes(data, rng, donors)


def read_gguf(data: bytes) -> None:
    """The configuration, the names of weights, all weights, and what the file says about text. What the model text of a
    configuration means is tried by the target `configuration`."""
    from einc.cli.model_folders import read_published_model
    from einc.importers.common import ImportRequest
    from einc.importers.hf import import_hf
    from einc_runtime.execution.data.gguf_file import GgufFile
    from einc_runtime.execution.data.gguf_weights import view_gguf
    from einc_runtime.generation.model_folder import ModelFolder

    with file_of(data) as path:
        model = read_published_model(path)
        import_hf(model.config, model.where, "m", ImportRequest(tokens=4), model.stored)
        view = view_gguf(GgufFile(path))
        for name in view.names:
            stored = view.find(name)
            assert stored.read(None).shape == stored.shape  # type: ignore[arg-type]
        folder = ModelFolder(path)
        tokenizer = folder.read_tokenizer()
        tokenizer.decode(tokenizer.encode("abc <s> d"))
        folder.read_end_tokens(tokenizer)
        folder.read_sampling()
        folder.read_chat_template()


# ONNX. A tree is the model as protocol buffers write it in JSON.


def seed_onnx() -> list[bytes]:
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    names = ("pytorch-operator/test_operator_conv", "simple/test_single_relu_model",
             "pytorch-operator/test_operator_addmm", "pytorch-operator/test_operator_pad",
             "pytorch-converted/test_BatchNorm2d_eval", "pytorch-converted/test_AvgPool2d",
             "pytorch-converted/test_Linear", "pytorch-converted/test_PReLU_1d",
             "pytorch-operator/test_operator_concat2",
             "pytorch-converted/test_Embedding", "pytorch-operator/test_operator_reduced_mean_keepdim")  # fmt: skip
    files = [(folder / name / "model.onnx").read_bytes() for name in names if (folder / name / "model.onnx").exists()]
    return [*files, _make_sequence_model()]


def _make_sequence_model() -> bytes:
    """Lookups, heads, a mask, a scan of a recurrent network, and what shapes are computed from."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(2)
    tensors = {"table": rng.standard_normal((5, 4)).astype("f4"), "up": rng.standard_normal((4, 6)).astype("f4"),
               "heads": np.array([0, -1, 2, 3]), "w": rng.standard_normal((1, 8, 4)).astype("f4"),
               "r": rng.standard_normal((1, 8, 2)).astype("f4"), "axes": np.array([1])}  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "up"], ["u"]),
        helper.make_node("Reshape", ["u", "heads"], ["s"]),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("LSTM", ["e", "w", "r"], ["states", "last"], hidden_size=2),
        helper.make_node("Squeeze", ["states", "axes"], ["h"]),
        helper.make_node("Shape", ["h"], ["shape"]),
        helper.make_node(
            "ConstantOfShape", ["shape"], ["one"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1])
        ),
        helper.make_node("Mul", ["h", "one"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [3, "tokens"])
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("p", "y")]
    stored = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [ids], results, stored),
                              opset_imports=[helper.make_opsetid("", 21)])  # fmt: skip
    return bytes(model.SerializeToString())


@cache
def _parse_onnx(data: bytes) -> Any:
    import onnx
    from google.protobuf.json_format import MessageToDict

    model = onnx.ModelProto()
    model.ParseFromString(data)
    return MessageToDict(model)


def mutate_onnx(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    import onnx
    from google.protobuf.json_format import Error, ParseDict
    from google.protobuf.message import DecodeError

    if rng.random() < 0.85:
        with contextlib.suppress(Error, DecodeError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            tree = copy_tree(_parse_onnx(data))
            mutate_tree(tree, rng, [_parse_onnx(rng.choice(donors))])
            model = ParseDict(tree, onnx.ModelProto(), ignore_unknown_fields=True)
            return bytes(model.SerializeToString())
    return mutate_bytes(data, rng, donors)


def read_onnx_model(data: bytes) -> None:
    """The text and its weights."""
    from einc.importers.onnx.files import read_onnx
    from einc.importers.onnx.graphs import import_graph
    from einc.importers.weight_files import describe_weight, write_weights

    with file_of(data) as path:
        graph = import_graph(read_onnx(path), "m")
        _build(graph.text)
        weights = [describe_weight(name, array) for name, array in graph.weights.items()]
        write_weights(io.BytesIO(), weights)


# Archives of torch.export. A tree is one of the entries that are JSON.

MODEL = "models/model.json"


def seed_pt2() -> list[bytes]:
    from tests.support.torch_archives import CASES, list_entries, load_case

    return [_zip(list_entries(load_case(name).documents)) for name in CASES]


def _zip(entries: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(f"model/{name}"), data)
    return stream.getvalue()


@cache
def _parse_pt2(data: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The entries of an archive, and the trees of those that are JSON."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()[:99]}
    return entries, {name: json.loads(entry) for name, entry in entries.items() if name.endswith(".json")}


def mutate_pt2(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Most mutations change the JSON of the graph or of the tensors, some which entries there are."""
    if rng.random() < 0.85:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, zipfile.BadZipFile, EOFError, OSError,
                                 NotImplementedError, RuntimeError, RecursionError):  # fmt: skip
            entries, trees = _parse_pt2(data)
            if rng.random() < 0.1:
                texts = {name: entry.decode("latin-1") for name, entry in entries.items()}
                mutate_tree(texts, rng, ())
                return _zip({name: entry.encode("latin-1") for name, entry in texts.items()})
            chosen = MODEL if rng.random() < 0.7 and MODEL in trees else rng.choice(list(trees))
            tree, (_, donor) = copy_tree(trees[chosen]), _parse_pt2(rng.choice(donors))
            mutate_tree(tree, rng, [donor.get(chosen, donor)])
            return _zip(entries | {chosen: json.dumps(tree).encode()})
    return mutate_bytes(data, rng, donors)


def read_pt2(data: bytes) -> None:
    """The text and its weights."""
    from einc.importers.pytorch.archive import ExportArchive
    from einc.importers.pytorch.convert import convert_archive
    from einc.importers.pytorch.importing import write_weight_file

    with file_of(data) as path, ExportArchive(path) as archive:
        converted = convert_archive(archive, "m")
        _build(converted.text)
        write_weight_file(io.BytesIO(), archive, converted)
