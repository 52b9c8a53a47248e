"""A model of three equal layers whose plan on four sites of dgx-v100 has two kinds of exchanges, each in every layer.

`x.0`, `x.1` and `x.2` are reduce-scatters of four atoms; `layer.1.h.1` and `layer.2.h.1` gather what these made.
"""

from dataclasses import replace

from einc.compiler import Compiled, compile_model
from einc.options import CompileOptions
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove

TEXT = """
model layers
dim rows = 24
dim width = 40
dim hidden = 56
input x : f32[rows, width]
block layer(x) {
    weight up : f32[width, hidden]
    weight down : f32[hidden, width]
    h = silu(matmul(x, up))
    return softmax(matmul(h, down), "width")
}
repeat 3 as i { x = layer(x) }
output y = x * 2.0
"""

OPTIONS = CompileOptions(machine="dgx-v100", devices=4, ideal=True, schedule="naive", selector="eindecomp")


def compile_layers(*proposers, **changes):
    """The compilation, with everything done and the plan proved."""
    compiled: Compiled = compile_model(TEXT, "layers.ein", replace(OPTIONS, **changes), proposers=proposers)
    prove(decode(encode(compiled.bundle)))
    return compiled


def exchanges_of(compiled):
    """The exchanges of a plan by the names of their operators."""
    return {
        operation.name: operation.exchange for operation in compiled.bundle.operations if operation.exchange is not None
    }
