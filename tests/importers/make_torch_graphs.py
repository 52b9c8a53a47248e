"""Makes the committed graphs of tests/importers/data/torch: `python -m tests.importers.make_torch_graphs` (with torch).

Each is a module, exported and decomposed as `einc.from_torch` does it. Weights follow from their names, so that the
JSON alone is committed, without what the import does not read.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim

from einc.importers.pytorch.exporting import export_module
from tests.support.torch_archives import FOLDER, draw_weight

Tensor = torch.Tensor


class SmallTransformer(nn.Module):
    """An embedding, causal attention with grouped heads, an RMS norm, a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 12)
        self.norm = nn.RMSNorm(12)
        self.qkv = nn.Linear(12, 24, bias=False)
        self.merge = nn.Linear(12, 12)
        self.up, self.gate, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        q, k, v = self.qkv(self.norm(x)).split([12, 6, 6], -1)
        q, k, v = (t.unflatten(-1, (-1, 3)).transpose(1, 2) for t in (q, k, v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.merge(a.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def list_cases() -> dict[str, tuple[nn.Module, tuple[Tensor, ...], Any]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 9, 7, generator=generator)
    convolutions = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )
    rows = torch.randn(5, 7, generator=generator)
    perceptron = nn.Sequential(nn.Linear(7, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3), nn.Softmax(-1))
    return {
        "perceptron": (perceptron, (rows,), ({0: Dim("rows")},)),
        "convolutions": (convolutions, (images,), None),
        "transformer": (SmallTransformer(), (torch.randint(0, 11, (2, 5), generator=generator),), None),
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (module, inputs, dynamic) in list_cases().items():
        for key, weight in module.state_dict().items():
            drawn = draw_weight(key, tuple(weight.shape), weight.numpy().dtype)
            weight.copy_(torch.from_numpy(np.asarray(drawn)))
        module.eval()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = Path(folder, "model.pt2")
            export_module(module, inputs, None, None if dynamic is None else dynamic, str(path))
            with zipfile.ZipFile(path) as archive:
                content = {
                    "model": strip(json.loads(archive.read("model/models/model.json"))),
                    "weights": json.loads(archive.read("model/data/weights/model_weights_config.json")),
                    "constants": json.loads(archive.read("model/data/constants/model_constants_config.json")),
                }
            results = [module(*inputs)]
        for role, tensors in (("inputs", inputs), ("outputs", results)):
            content[role] = [{"type": str(t.numpy().dtype), "elements": t.tolist()} for t in tensors]
        (FOLDER / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


def strip(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what the import does not read; a stack trace names no folder of this computer."""
    module = document["graph_module"]
    graph = module["graph"]
    for node in graph["nodes"]:
        lines = node["metadata"].get("stack_trace", "").splitlines()[-2:]
        trace = "\n".join(lines).replace(str(Path.cwd()), ".")
        node["metadata"] = {"stack_trace": trace} if "tests/importers" in trace else {}
    kept = ("nodes", "outputs", "tensor_values", "sym_int_values")
    return {
        "graph_module": {"graph": {key: graph[key] for key in kept}, "signature": module["signature"]},
        "schema_version": document["schema_version"],
        "range_constraints": document["range_constraints"],
    }


if __name__ == "__main__":
    main()
