"""Models with public weights, which packages bring as .onnx files: results equal those of ONNX Runtime.

`make test-onnx` unpacks the packages into build/onnx: kinds of files, finding and reading text in pictures, speech.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.support.onnx_cases import import_model, run_graph

FOLDER = Path(__file__).parents[3] / "build" / "onnx"
MODELS = {
    "magika/models/standard_v3_3/model.onnx": {"batch": 1},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {"height": 96, "width": 64},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {"height": 48, "width": 64},
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {"height": 64, "width": 64},
    "silero_vad/data/silero_vad_half.onnx": {"rows": 3, "samples": 576},
}
"""The extents of dimensions without a number: of the first one, and of the third and the fourth of pictures."""


@pytest.mark.parametrize("path", MODELS)
def test_results_equal_onnx_runtime(path: str) -> None:
    model = onnx.load(FOLDER / path)
    rng = np.random.default_rng(0)
    feeds, dims = {}, {}
    for info in model.graph.input:
        shape = []
        axes = info.type.tensor_type.shape.dim
        for axis, dim in enumerate(axes):
            extent = dim.dim_value if dim.HasField("dim_value") else -1
            if extent < 0:
                extent = _choose(MODELS[path], axis, len(axes))
                dims[dim.dim_param or f"{info.name}_{axis}"] = extent
            shape.append(extent)
        integers = info.type.tensor_type.elem_type != onnx.TensorProto.FLOAT
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        feeds[info.name] = (rng.integers(0, 257, shape) if integers else rng.standard_normal(shape)).astype(dtype)
    session = onnxruntime.InferenceSession(str(FOLDER / path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(None, feeds), strict=True))
    graph = import_model(model, **dims)
    for sites in (1, 3):
        for name, result in run_graph(graph, feeds, sites).items():
            scale = max(1, np.abs(expected[name]).max())
            np.testing.assert_allclose(result / scale, expected[name] / scale, rtol=0, atol=1e-4)


def _choose(extents: dict[str, int], axis: int, rank: int) -> int:
    if rank == 4 and axis > 1:
        return extents["height" if axis == 2 else "width"]
    return extents.get("rows", 1) if axis == 0 or rank == 3 else extents.get("samples", 2048)
