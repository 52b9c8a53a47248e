"""Sessions with tensors of PyTorch, bf16 too, and with arrays of JAX where it is installed; and results for both."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime import Session, as_dlpack
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.dlpack import read_dlpack

TEXT = """
model layer
dim rows = 7
dim wide = 12
dim narrow = 5
input x : {dtype}[rows, wide]
weight w : {dtype}[narrow, wide] from "w.weight"
y[rows, narrow] = x[rows, wide] * w[narrow, wide]
output y
"""
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
jax_missing = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def open_session(dtype: str, sites: int) -> Session:
    options = CompileOptions("host", sites, selector="eindecomp")
    return Session(compile_model(TEXT.format(dtype=dtype), "layer.ein", options).bundle, "cpu")


@pytest.mark.parametrize("sites", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_layer_of_torch(dtype: str, sites: int) -> None:
    torch.manual_seed(1)
    layer = torch.nn.Linear(12, 5, bias=False, dtype=TYPES[dtype])
    x = torch.randn(12, 7, dtype=TYPES[dtype]).T  # not dense
    session = open_session(dtype, sites)
    session.load_weights({"w.weight": layer.state_dict()["weight"]})
    y = torch.from_dlpack(as_dlpack(session.run({"x": x})["y"]))
    assert y.dtype == TYPES[dtype]
    rough = {"bf16": 2e-2, "f16": 2e-3}.get(dtype, 1e-5)
    torch.testing.assert_close(y, layer(x).detach(), rtol=rough, atol=rough)


def test_memory_is_shared_both_ways() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    array = read_dlpack("x", tensor)
    assert array.ctypes.data == tensor.data_ptr()
    tensor[1, 2] = 100
    assert array[1, 2] == 100
    own = np.arange(6).astype(ml_dtypes.bfloat16).reshape(3, 2)
    view = torch.from_dlpack(as_dlpack(own))
    view[0, 1] = 50
    assert own[0, 1] == 50
    del own  # the tensor keeps the memory
    assert view.tolist() == [[0, 50], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(7, 12, requires_grad=True), "cannot be had by DLPack"),
        (torch.zeros(7, 12, dtype=torch.complex64), r"expected f32\[7, 12\] for input 'x', found complex64\[7, 12\]"),
        (torch.zeros(7, 12, dtype=torch.float8_e4m3fn), "cannot be had by DLPack"),
        (torch.zeros(7, 12, device="meta"), "cannot be had by DLPack"),
        (torch.zeros(7, 12, dtype=torch.float64), r"expected f32\[7, 12\] for input 'x', found f64\[7, 12\]"),
    ],
    ids=["gradient", "complex", "float8", "no memory", "other type"],
)
def test_tensors_that_a_plan_cannot_take(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(ArrayFault, match=message):
        open_session("f32", 1).load("x", tensor)


@jax_missing
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_arrays_of_jax(dtype: str) -> None:
    import jax.numpy as jnp

    kind: Any = {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype]
    draw = np.random.default_rng(0).standard_normal
    x, w = jnp.asarray(draw((7, 12)), kind), jnp.asarray(draw((5, 12)), kind)
    session = open_session(dtype, 1)
    session.load_weights({"w.weight": w})
    y = jnp.from_dlpack(as_dlpack(session.run({"x": x})["y"]))
    assert y.dtype == kind
    expected = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    rough = {"f32": 1e-4, "bf16": 5e-2}[dtype]
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=rough, atol=rough)
