"""The residual network of images as an ONNX model of plain operators, as exporters write it.

python -m tests.bench.onnx_convnet PLAN TARGET
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import helper

from einc_runtime.plan.codec import read_bundle
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import GROUP_NORM_EPS, GROUPS, count_stages, drawn
from tests.bench.onnx_llama import FLOAT, OPSET, OnnxGraph


def build_convnet(bundle: Bundle) -> onnx.ModelProto:
    """The input is `images`, the output `logits`. A group norm is a norm of instances, scaled for each channel."""
    w, g = drawn(bundle), OnnxGraph()
    batch, channels = len(w["images"]), len(w["stem"])
    images = g.input("images", FLOAT, w["images"].shape)
    x = g.add("Relu", g.add("Conv", images, g.constant(w["stem"]), strides=[2, 2], pads=[3, 3, 3, 3]))
    ones, zeros = (g.constant(np.full(GROUPS, value, np.float32)) for value in (1, 0))
    for stage in (f"stage.{number}" for number in range(count_stages(bundle))):
        h = g.add("Conv", x, g.constant(w[f"{stage}.first"]), pads=[1, 1, 1, 1])
        grouped = g.add("InstanceNormalization", g.reshape(h, 0, GROUPS, -1), ones, zeros, epsilon=GROUP_NORM_EPS)
        plain = g.add("Reshape", grouped, g.add("Shape", h))
        gain, bias = (g.constant(w[f"{stage}.{name}"].reshape(channels, 1, 1)) for name in ("gain", "bias"))
        h = g.add("Relu", g.add("Add", g.add("Mul", plain, gain), bias))
        x = g.add("Relu", g.add("Add", x, g.add("Conv", h, g.constant(w[f"{stage}.second"]), pads=[1, 1, 1, 1])))
    x = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    pooled = g.reshape(g.add("GlobalAveragePool", x), batch, channels)
    g.output(g.add("MatMul", pooled, g.constant(w["head"])), "logits", (batch, w["head"].shape[1]))
    graph = helper.make_graph(g.nodes, "convnet", g.inputs, g.outputs, g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def main(plan: str, target: str) -> None:
    onnx.save(build_convnet(read_bundle(plan)), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
