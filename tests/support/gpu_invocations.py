"""Invocations of every GPU kernel, at addresses that must not be read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from einc_runtime.kernels.base import Invocation, JointInvocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.schema import ITEMSIZE, Block
from tests.support.kernel_runs import concatenation

BASE = 1 << 40


def array(dtype, *shape, at=0, strides=None):
    size = ITEMSIZE[dtype]
    steps = strides_of(shape, size) if strides is None else tuple(s * size for s in strides)
    return GpuArray(BASE + at * (1 << 30), shape, steps, dtype, 0)


@dataclass(frozen=True)
class Case:
    kernel: str
    attributes: dict
    inputs: tuple
    outputs: tuple

    def invocation(self, shift=0):
        def moved(items):
            return [replace(x, pointer=x.pointer + shift * (x.itemsize if shift == 1 else 1)) for x in items]

        def blocks(items):
            return [Block((0,) * len(x.shape), x.shape) for x in items]

        operands = moved(self.inputs), moved(self.outputs), blocks(self.inputs), blocks(self.outputs)
        return Invocation(self.kernel, self.attributes, *operands)

    def launches(self, shift=0, architecture="sm_90"):
        invocation = self.invocation(shift)
        views = ([as_layout(x) for x in arrays] for arrays in (invocation.inputs, invocation.outputs))
        return builders.build_kernel(invocation.on(*views), architecture)


def made(kernel, attributes, inputs, *outputs):
    numbered = [replace(x, pointer=BASE + n * (1 << 30)) for n, x in enumerate((*inputs, *outputs))]
    return Case(kernel, attributes, tuple(numbered[: len(inputs)]), tuple(numbered[len(inputs) :]))


def attention(q_lens, k_lens, **changes):
    base = {"causal": True, "scale": 0.125, "q_lens": q_lens, "k_lens": k_lens, "window": 0, "extras": []}
    return {**base, **changes}


def selective_scan(steps, channels, states, dtype):
    return {
        "loops": f"t={steps} d={channels} n={states}", "equations": [f"{dtype}[t, d, n] | 0", f"{dtype}[t, d]"],
        "reads": ["0[t, d]; 1[d, n]; @0[t-1, d, n]; 2[t, d]; 3[t, n]", "@0[t, d, n]; 4[t, n]"],
        "programs": [
            "t0 = mul x0 x1; t1 = exp t0; t2 = mul t1 x2; t3 = mul x0 x3; t4 = mul t3 x4; t5 = add t2 t4",
            "t0 = mul x0 x1",
        ],
        "aggregations": ["", "sum"], "results": [1],
    }  # fmt: skip


SWIGLU = {"program": "t0 = silu x0; t1 = mul t0 x1", "indices": "t f, t f -> t f"}
SCALED = {"program": "t0 = mul x0 x1; t1 = gelu t0", "indices": "i j, j -> j i"}
INVOCATIONS = {
    "map": made("map", SWIGLU, [array("f16", 512, 1792), array("f16", 512, 1792)], array("f16", 512, 1792)),
    "map that transposes": made("map", SCALED, [array("bf16", 100, 333), array("f32", 333)], array("bf16", 333, 100)),
    "map to floats of 8 bits": made("map", {"program": "t0 = cast:f8e4m3 x0", "indices": "i j -> i j"},
                                    [array("bf16", 100, 333)], array("f8e4m3", 100, 333)),
    "map of floats of 8 bits": made("map", {"program": "t0 = cast:f32 x0; t1 = mul t0 x1", "indices": "i j, i -> i j"},
                                    [array("f8e5m2", 100, 333), array("f32", 100)], array("f32", 100, 333)),
    "reduce": made("reduce", {"program": "t0 = mul x0 x0", "indices": "i j -> i", "aggregation": "sum"},
                   [array("f16", 1024, 4096)], array("f16", 1024)),
    "reduce in shares": made("reduce", {"program": "t0 = abs x0", "indices": "i j -> j", "aggregation": "max"},
                             [array("f32", 100000, 40)], array("f32", 40)),
    "convolution": made(
        "index",
        {"loops": "n=2 o=32 h=56 w=56 c=24 r=3 s=3", "kept": 4, "reads": "0[n, c, h+r-1, w+s-1 | 0]; 1[o, c, r, s]",
         "program": "t0 = mul x0 x1", "aggregation": "sum", "shapes": "2x24x56x56 32x24x3x3"},
        [array("f16", 2, 24, 56, 56), array("f16", 32, 24, 3, 3)], array("f16", 2, 32, 56, 56)),
    "rows at data": made(
        "index",
        {"loops": "t=500 d=128", "kept": 2, "reads": "0[@1, d]; 1[t]", "program": "t0 = mul 2.0 x0", "aggregation": "",
         "shapes": "9000x128 500"},
        [array("f32", 9000, 128), array("i64", 500)], array("f32", 500, 128)),
    "running sums": made(
        "index",
        {"loops": "i=300 d=64 k=300", "kept": 2, "reads": "0[k, d]; #k; #i",
         "program": "t0 = le x1 x2; t1 = where t0 x0 0.0", "aggregation": "sum", "shapes": "300x64"},
        [array("f32", 300, 64)], array("f32", 300, 64)),
    "contract": made("contract", {"equation": "t d, d f -> t f"}, [array("f16", 512, 4096), array("f16", 4096, 1792)],
                     array("f16", 512, 1792)),
    "contract of a strided operand": made(
        "contract", {"equation": "t d, d f -> t f"},
        [array("f16", 64, 32, strides=(64, 2)), array("f16", 32, 48)], array("f16", 64, 48)),
    "contract of integers": made("contract", {"equation": "i k, k j -> i j"},
                                 [array("i32", 30, 20), array("i32", 20, 10)], array("i32", 30, 10)),
    "dequantize": made("dequantize", {"group": 0}, [array("i8", 3, 5, 96), array("bf16", 3, 5), array("i8", 3, 5)],
                       array("bf16", 3, 5, 96)),
    "dequantize groups": made("dequantize", {"group": 128}, [array("i4x2", 64, 1280), array("f16", 64, 20)],
                              array("f16", 64, 2560)),
    "dequantize floats": made("dequantize", {"group": 128}, [array("f8e4m3", 64, 1280), array("f32", 64, 10)],
                              array("bf16", 64, 1280)),
    "quantized floats": made("quantized_contract", {"equation": "t k, n k -> t n", "group": 0},
                             [array("bf16", 7, 256), array("f8e5m2", 48, 256), array("f32", 48)],
                             array("bf16", 7, 48)),
    "dequantize mxfp4": made("dequantize", {"group": 32}, [array("f4x2", 64, 640), array("f8e8m0", 64, 40)],
                             array("bf16", 64, 1280)),
    "quantized nvfp4": made("quantized_contract", {"equation": "t k, n k -> t n", "group": 16},
                            [array("f16", 7, 256), array("f4x2", 48, 128), array("f8e4m3", 48, 16), array("f32")],
                            array("f16", 7, 48)),
    "quantized": made("quantized_contract", {"equation": "t k, n k -> t n", "group": 32},
                      [array("f16", 7, 256), array("i4x2", 48, 128), array("f16", 48, 8), array("i8", 48, 8)],
                      array("f16", 7, 48)),
    "rounded": made("rounded_contract", {"equation": "t k, n k -> t n"},
                    [array("bf16", 512, 4096), array("bf16", 512), array("i8", 1792, 4096), array("bf16", 1792)],
                    array("bf16", 512, 1792)),
    "rounded floats": made("rounded_contract", {"equation": "t k, n k -> t n"},
                           [array("bf16", 512, 4096), array("bf16", 512), array("f8e4m3", 1792, 4096),
                            array("f32", 1792)], array("bf16", 512, 1792)),
    "rounded floats of heads": made(
        "rounded_contract", {"equation": "t k, h d k -> h t d"},
        [array("f16", 64, 512), array("f16", 64), array("f8e4m3", 4, 128, 512), array("f32")],
        array("f16", 4, 64, 128)),
    "rounded nvfp4": made("rounded_contract", {"equation": "t k, n k -> t n", "group": 16},
                          [array("bf16", 40, 512), array("bf16", 40), array("f4x2", 96, 256), array("f8e4m3", 96, 32),
                           array("f32")], array("bf16", 40, 96)),
    "rounded in decoding": made(
        "rounded_contract", {"equation": "t h d, j h d -> j t"},
        [array("f16", 3, 32, 128), array("f16", 3), array("i8", 500, 32, 128), array("f16", 500)],
        array("f16", 500, 3)),
    "recurrence": made("recurrence", selective_scan(512, 1536, 16, "f16"),
                       [array("f16", 512, 1536), array("f16", 1536, 16), array("f16", 512, 1536), array("f16", 512, 16),
                        array("f16", 512, 16)], array("f16", 512, 1536)),
    "recurrence in steps": made(
        "recurrence",
        {"loops": "t=3 b=20 n=200 k=200", "equations": ["f32[t, b, n]", "f32[t, b, n] | 0"],
         "reads": ["0[n, k]; @1[t-1, b, k]", "1[t, b, n]; @0[t, b, n]"],
         "programs": ["t0 = mul x0 x1", "t0 = add x0 x1; t1 = tanh t0"], "aggregations": ["sum", ""], "results": [1]},
        [array("f32", 200, 200), array("f32", 3, 20, 200)], array("f32", 3, 20, 200)),
    "softmax": made("softmax", {"axis": -1}, [array("f16", 8, 100, 1000)], array("f16", 8, 100, 1000)),
    "softmax of long rows": made("softmax", {"axis": 1}, [array("f32", 20, 50257)], array("f32", 20, 50257)),
    "reshape": made("reshape", {}, [array("f16", 512, 32, 128)], array("f16", 512, 4096)),
    "rmsnorm": made("rmsnorm", {"eps": 1e-5}, [array("f16", 512, 4096), array("f16", 4096)], array("f16", 512, 4096)),
    "rmsnorm of a gain stored less 1": made("rmsnorm", {"eps": 1e-6, "offset": 1.0},
                                            [array("bf16", 64, 2304), array("bf16", 2304)], array("bf16", 64, 2304)),
    "layernorm": made("layernorm", {"eps": 1e-5}, [array("f32", 100, 384), array("f32", 384), array("f32", 384)],
                      array("f32", 100, 384)),
    "rope": made("rope", {"theta": 1e4, "scaling": "none"}, [array("f16", 32, 512, 128), array("i64", 512)],
                 array("f16", 32, 512, 128)),
    "rows of a table": made(
        "index",
        {"loops": "t=512 d=4096", "kept": 2, "reads": "1[@1, d]; 0[t]", "program": "t0 = copy x0", "aggregation": "",
         "shapes": "512 32000x4096"},
        [array("i64", 512), array("f16", 32000, 4096)], array("f16", 512, 4096)),
    "experts": made("expert_matmul", {"experts": 128}, [array("bf16", 512, 2048), array("bf16", 128, 768, 2048),
                    array("i64", 512, 8)], array("bf16", 512, 8, 768)),
    "experts of slots": made("expert_matmul", {"experts": 8}, [array("f32", 40, 2, 96), array("f32", 8, 60, 96),
                             array("i32", 40, 2)], array("f32", 40, 2, 60)),
    "experts in decoding": made("expert_matmul", {"experts": 128}, [array("f16", 2, 2048), array("f16", 128, 768, 2048),
                                array("i64", 2, 8)], array("f16", 2, 8, 768)),
    "stored experts": made("expert_matmul", {"experts": 128, "group": 32}, [
        array("bf16", 512, 2048), array("f4x2", 128, 768, 1024), array("f8e8m0", 128, 768, 64), array("i64", 512, 8),
    ], array("bf16", 512, 8, 768)),
    "stored experts in decoding": made("expert_matmul", {"experts": 128, "group": 128}, [
        array("f16", 2, 2048), array("i4x2", 128, 768, 1024), array("f16", 128, 768, 16), array("i8", 128, 768, 16),
        array("i64", 2, 8),
    ], array("f16", 2, 8, 768)),
    "stored experts with factors": made("expert_matmul", {"experts": 8, "group": 16}, [
        array("bf16", 40, 2, 96), array("f4x2", 8, 60, 48), array("f8e4m3", 8, 60, 6), array("f32", 8),
        array("i32", 40, 2),
    ], array("bf16", 40, 2, 60)),
    "append": made("append", {"cache_lens": [100, 50], "new_lens": [1, 3]},
                   [array("f16", 8, 150, 128), array("f16", 8, 4, 128), array("i64", 4)], array("f16", 8, 150, 128)),
    "append to floats of 8 bits": made(
        "append", {"cache_lens": [100, 50], "new_lens": [1, 3]},
        [array("f8e5m2", 8, 150, 128), array("f16", 8, 4, 128), array("i64", 4)], array("f8e5m2", 8, 150, 128)),
    "concat": made(*concatenation(0, (3, 128), (5, 128)), [array("f16", 3, 128), array("f16", 5, 128)],
                   array("f16", 8, 128)),
    "topk": made("topk", {"axis": 1}, [array("f32", 4, 32000)], array("f32", 4, 50), array("i64", 4, 50)),
    "attention": made("attention", attention([1000, 24], [1000, 24]),
                      [array("f16", 32, 1024, 128), array("f16", 8, 1024, 128), array("f16", 8, 1024, 128)],
                      array("f16", 32, 1024, 128), array("f32", 32, 1024)),
    "attention in decoding": made("attention", attention([1], [8192]),
                                  [array("bf16", 32, 1, 128), array("bf16", 8, 8192, 128), array("bf16", 8, 8192, 128)],
                                  array("bf16", 32, 1, 128), array("f32", 32, 1)),
    "attention of latent rows": made("attention", attention([1], [8192]),
                                     [array("bf16", 128, 1, 576), *[array("bf16", 1, 8192, 576)] * 2],
                                     array("bf16", 128, 1, 576), array("f32", 128, 1)),
    "attention of keys of 8 bits": made(
        "attention", attention([1], [8192]),
        [array("bf16", 32, 1, 128), array("f8e4m3", 8, 8192, 128), array("f8e4m3", 8, 8192, 128)],
        array("bf16", 32, 1, 128), array("f32", 32, 1)),
    "attention over blocks": made(
        "attention", attention([1] * 4, [2048] * 4, extras=["positions", "blocks"]),
        [array("bf16", 32, 4, 128), array("bf16", 8, 65 * 128, 128), array("bf16", 8, 65 * 128, 128),
         array("i64", 4), array("i64", 4, 16)],
        array("bf16", 32, 4, 128), array("f32", 32, 4)),
    "attention with everything": made(
        "attention", attention([40, 24], [40, 24], window=16, extras=["mask", "positions"]),
        [array("f32", 6, 64, 80), array("f32", 2, 64, 80), array("f32", 2, 64, 48), array("bool", 64),
         array("i64", 64)],
        array("f32", 6, 64, 48), array("f32", 6, 64)),
    "attention with a soft cap": made(
        "attention", attention([1000, 24], [1000, 24], window=512, softcap=50.0),
        [array("bf16", 8, 1024, 256), array("bf16", 4, 1024, 256), array("bf16", 4, 1024, 256)],
        array("bf16", 8, 1024, 256), array("f32", 8, 1024)),
    "attention with a soft cap in f64": made(
        "attention", attention([40, 24], [40, 24], softcap=2.0),
        [array("f64", 4, 64, 80), array("f64", 2, 64, 80), array("f64", 2, 64, 48)],
        array("f64", 4, 64, 48), array("f64", 4, 64)),
}  # fmt: skip
"""Cases by their names."""


def copies(count, *members):
    every = [replace(member, pointer=BASE + (n * len(members) + k) * (1 << 30)) for n in range(count + 1)
             for k, member in enumerate(members)]  # fmt: skip
    return every[: count * len(members)], every[count * len(members) :]


def joint_launches(name):
    invocation = JOINT_AGGREGATIONS[name]
    views = ([as_layout(x) for x in arrays] for arrays in (invocation.reads, invocation.writes))
    return builders.build_joint_aggregation(invocation.on(*views))


JOINT_AGGREGATIONS = {
    "averages aggregated": JointInvocation(
        "logsumexp", *copies(4, array("f16", 32, 100, 128), array("f32", 32, 100)), ((0, 1, 2), (0, 1))),
    "lists aggregated": JointInvocation(
        "topk", *copies(3, array("f32", 7, 50), array("i64", 7, 50)), ((0, 1), (0, 1))),
}  # fmt: skip
"""Cases by their names."""
