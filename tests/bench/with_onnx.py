"""The same model in ONNX Runtime and in OpenVINO, from one ONNX file that another process writes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.plan.schema import Bundle
from tests.bench.cases import MODULES
from tests.bench.inputs import drawn, sentences


def write_model(bundle: Bundle, plan: str, folder: str) -> Path:
    """The file that both read, which is written once."""
    importlib.import_module("onnx")
    model = Path(plan).with_suffix(".onnx")
    if not model.exists():
        words = ["tests.bench.onnx_convnet" if bundle.model == "convnet" else "tests.bench.onnx_llama", plan]
        if bundle.model in MODULES:
            words = ["tests.bench.modules", bundle.model]
        elif folder:
            words = ["tests.bench.onnx_encoder", folder, *map(str, sentences(bundle)[0].shape)]
        subprocess.run([sys.executable, "-m", *words, str(model)], check=True)
    return model


def prepared(kind: str, bundle: Bundle, model: Path, folder: str, threads: int):
    library = importlib.import_module(kind)
    start = _start_onnxruntime if kind == "onnxruntime" else _start_openvino
    dtype = next(tensor.dtype for tensor in bundle.tensors if tensor.kind == "weight")
    shapes, compute = start(library, model, threads, dtype)
    if bundle.model in MODULES:
        from tests.bench.modules import read_inputs

        given = read_inputs(bundle.model, list(shapes))
    else:
        given = drawn(bundle, weights=False)
    if folder and bundle.model not in MODULES:
        ids, mask = sentences(bundle)
        given = {"ids": ids, "mask": mask.astype(np.int64)}
    feeds = {name: given.get(name, np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    result = None

    def run() -> None:
        nonlocal result
        result = compute(feeds)

    return run, lambda: result


def _start_onnxruntime(library, model: Path, threads: int, dtype: str):
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    session = library.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def compute(feeds: dict[str, Array]) -> Array:
        return session.run(names, feeds)[0]

    return {one.name: one.shape for one in session.get_inputs()}, compute


def _start_openvino(library, model: Path, threads: int, dtype: str):
    precision = {"INFERENCE_PRECISION_HINT": dtype, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = library.Core().compile_model(str(model), "CPU", precision).create_infer_request()
    inputs = {port.any_name: tuple(port.shape) for port in request.model_inputs}

    def compute(feeds: dict[str, Array]) -> Array:
        request.infer(feeds, share_inputs=True)
        return request.get_output_tensor(0).data

    return inputs, compute
