"""oneDNN's convolution alone, of operands that are already in the layouts that it likes best."""

from __future__ import annotations

import numpy as np

from einc_runtime.kernels.numpy import onednn
from einc_runtime.kernels.numpy.onednn_convolution import ConvolutionPrimitive, ConvolutionShape, WindowSteps
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import drawn


def prepared(bundle: Bundle, threads: int):
    """The convolution `conv2d` of the operators. Raises ImportError where oneDNN is not installed."""
    if not onednn.is_available():
        raise ImportError("oneDNN is not installed", name="onednn")
    arrays = drawn(bundle)
    x, k = arrays["x"], arrays["k"]
    z = np.zeros_like(x)
    onednn.limit_threads(threads)
    layouts = [(array.shape, tuple(step // array.itemsize for step in array.strides)) for array in (x, k, z)]
    primitive = ConvolutionPrimitive(ConvolutionShape("f32", *layouts, WindowSteps((1, 1), (1, 1), (1, 1), (1, 1))))
    inner = [np.zeros(size, np.uint8) for size in primitive.sizes]
    primitive.copy(primitive.plain[0], x, primitive.used[0], inner[0])()
    primitive.copy(primitive.plain[1], k, primitive.used[1], inner[1])()
    back = primitive.copy(primitive.used[2], inner[2], primitive.plain[2], z)

    def fetch() -> np.ndarray:
        back()
        return z

    source, weights, target = inner
    return primitive.convolve(source, weights, target, (), np.zeros(max(1, primitive.scratch), np.uint8)), fetch
