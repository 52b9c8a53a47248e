"""A stand-in for the module `cudnn` (nvidia-cudnn-frontend) that enforces what its documents say, on the host's memory.

Names of arguments are those of the real binding: `test_cudnn_graphs.py` compares them where the package is installed.
"""

from __future__ import annotations

import ctypes
from enum import Enum

import numpy as np

from einc_runtime.dtypes import storage_dtype

__version__ = "1.15.0"


class Misuse(AssertionError):
    """A call that is wrong with the real package."""


class cudnnGraphNotSupportedError(RuntimeError):
    pass


data_type = Enum("data_type", "NOT_SET HALF BFLOAT16 FLOAT")
heur_mode = Enum("heur_mode", "A B FALLBACK")
diagonal_alignment = Enum("diagonal_alignment", "TOP_LEFT BOTTOM_RIGHT")
TYPES = {data_type.HALF: "f16", data_type.BFLOAT16: "bf16", data_type.FLOAT: "f32"}
STEPS = ("validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans")
WORKSPACE = 512

state = {"capturing": False, "refuses": "", "log": [], "handles": []}
"""Whether a stream is being captured, why graphs are not supported, what was executed, and handles that are alive."""


class Handle:
    def __init__(self):
        self.stream = None


def reset():
    state.update(capturing=False, refuses="", log=[], handles=[])


def backend_version():
    return 91300


def create_handle():
    if state["capturing"]:
        raise Misuse("a handle is made in a capture")
    handle = Handle()
    state["handles"].append(handle)
    return handle


def set_stream(handle, stream):
    _require_alive(handle)
    if state["capturing"]:
        raise Misuse("a handle changes its stream in a capture")
    handle.stream = stream


def destroy_handle(handle):
    _require_alive(handle)
    state["handles"].remove(handle)


def _require_alive(handle):
    if handle not in state["handles"]:
        raise Misuse("a handle that was destroyed, or never made")


class Tensor:
    def __init__(self, name, virtual):
        self.name, self.virtual = name, virtual
        self.dim = self.stride = self.dtype = None

    def set_output(self, value):
        self.virtual = not value
        return self

    def set_dim(self, dim):
        self.dim = list(dim)
        return self

    def set_stride(self, stride):
        self.stride = list(stride)
        return self

    def set_data_type(self, dtype):
        self.dtype = dtype
        return self

    def at(self, pointer):
        kind = storage_dtype(TYPES[self.dtype])
        strides = [step * kind.itemsize for step in self.stride]
        reach = sum((n - 1) * step for n, step in zip(self.dim, strides, strict=True)) + kind.itemsize
        raw = (ctypes.c_uint8 * reach).from_address(pointer)
        return np.ndarray(self.dim, kind, raw, 0, strides)


class pygraph:
    def __init__(self, name, io_data_type, intermediate_data_type, compute_data_type, handle):
        _require_alive(handle)
        if (intermediate_data_type, compute_data_type) != (data_type.FLOAT, data_type.FLOAT):
            raise Misuse("attention is computed in f32")
        self.io, self.done, self.tensors, self.how = io_data_type, [], [], None

    def tensor(self, *, name, dim, stride, data_type):
        if len(dim) != len(stride) or min(dim) < 1:
            raise Misuse("a tensor with fewer strides than extents")
        described = Tensor(name, False).set_dim(dim).set_stride(stride).set_data_type(data_type)
        self.tensors.append(described)
        return described

    def sdpa(self, *, name, q, k, v, generate_stats, attn_scale, diagonal_alignment=diagonal_alignment.TOP_LEFT,
             diagonal_band_right_bound=None):  # fmt: skip
        if generate_stats is not True or type(attn_scale) is not float:
            raise Misuse("stats are wanted, and the scale is a float")
        self.operands = q, k, v
        self.how = attn_scale, diagonal_alignment, diagonal_band_right_bound
        self.results = Tensor("O", True), Tensor("Stats", True)
        self.tensors += self.results
        return list(self.results)

    def get_workspace_size(self):
        self._require(STEPS)
        return WORKSPACE

    def execute(self, pointers, workspace, handle):
        self._require(STEPS)
        _require_alive(handle)
        if any(type(pointer) is not int for pointer in (*pointers.values(), workspace)) or not workspace:
            raise Misuse("addresses are integers, and the workspace is needed")
        if {*pointers} != {tensor for tensor in self.tensors if not tensor.virtual}:
            raise Misuse("every tensor that is not virtual has an address, and no other")
        state["log"].append((handle.stream, workspace, {tensor.name: at for tensor, at in pointers.items()}))
        q, k, v = (tensor.at(pointers[tensor]).astype("f8") for tensor in self.operands)
        o, stats = (tensor.at(pointers[tensor]) for tensor in self.results)
        scale, corner, right = self.how
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, group, 1) for x in (k, v))
        scores = scale * np.einsum("bhqd,bhkd->bhqk", q, k)
        if right is not None:
            ahead = k.shape[2] - q.shape[2] if corner is diagonal_alignment.BOTTOM_RIGHT else 0
            hidden = np.arange(k.shape[2])[None, :] > np.arange(q.shape[2])[:, None] + ahead + right
            scores = np.where(hidden, -np.inf, scores)
        largest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True)
        o[...] = np.einsum("bhqk,bhkd->bhqd", weights / total, v).astype(o.dtype)
        stats[...] = (largest + np.log(total)).astype("f4")

    def _require(self, steps):
        if tuple(self.done) != tuple(steps):
            raise Misuse(f"a graph that has done {self.done}, and not {steps}")

    def _validate(self):
        q, k, v = self.operands
        o, stats = self.results
        if any(tensor.virtual or tensor.dtype is None or tensor.dim is None for tensor in (o, stats)):
            raise Misuse("a result without an address, a type or extents")
        if stats.dtype is not data_type.FLOAT or stats.dim != [*q.dim[:3], 1] or o.dim != [*q.dim[:3], v.dim[3]]:
            raise Misuse("results of other extents or types")
        if any(tensor.dtype is not self.io for tensor in (q, k, v, o)) or q.dim[1] % k.dim[1] or k.dim != v.dim:
            raise Misuse("operands that do not fit each other")
        unreadable = any(
            tensor.stride[3] != 1 or any(step % 8 for step in tensor.stride[1:3]) for tensor in (q, k, v, o)
        )
        if unreadable or q.dim[3] % 8 or q.dim[3] > 256 or state["refuses"]:
            raise cudnnGraphNotSupportedError(state["refuses"] or "rows must be aligned")
        if self.how[1] is diagonal_alignment.BOTTOM_RIGHT and q.dim[2] > k.dim[2]:
            raise cudnnGraphNotSupportedError("bottom right alignment needs as many keys as queries")


def _step(number):
    name = STEPS[number]

    def call(self, *arguments):
        self._require(STEPS[:number])
        if name == "create_execution_plans" and not all(isinstance(argument, heur_mode) for argument in arguments[0]):
            raise Misuse("heuristics are modes")
        if number == 0:
            self._validate()
        self.done.append(name)

    return call


for _number, _name in enumerate(STEPS):
    setattr(pygraph, _name, _step(_number))
