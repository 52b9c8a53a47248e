"""The kernel `quantized_contract` of reproducible plans: the weight is widened, and multiplied as `contract` is there.

Each element of a widened weight has one result wherever it lies, so that the order of sums alone decides about bits.
"""

from __future__ import annotations

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.quantized import QuantizedContractCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.quantized import prepare_widening
from einc_runtime.kernels.numpy import quantized as in_numpy
from einc_runtime.kernels.reproducible.contract import build_contract


def build_quantized_contract(invocation: Invocation[Array]) -> Kernel:
    widen = prepare_widening if compiler.is_available() else in_numpy.prepare_widening
    return in_numpy.build_product(QuantizedContractCall.parse(invocation), widen, build_contract)
