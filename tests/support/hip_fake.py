"""HIP's library behind C's calling convention, on the fake driver: what its header and manual say of what is in use.

The prototypes are repeated here from hip/hip_runtime_api.h. A function checks its arguments as the manual says: results
have a place, flags are known ones, a device has no access to itself, and a grid has fewer than 2^32 threads. What it
does is what the fake binding of CUDA does, so that the rules of streams, events, captures and copies are checked there.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
)

from einc_runtime.kernels.cuda.cublas import WORKSPACE
from einc_runtime.kernels.triton.gemm import Gemm
from tests.support.cuda_fake import Misuse
from tests.support.cuda_fake_runtime import CUDARuntimeError, FakeRuntime
from tests.support.emulated_gemm import multiply

INVALID_VALUE, INVALID_DEVICE, NOT_READY = 1, 101, 600
COPY = [c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_size_t, c_int]
SIGNATURES = {
    "hipDeviceCanAccessPeer": [POINTER(c_int), c_int, c_int],
    "hipDeviceEnablePeerAccess": [c_int, c_uint],
    "hipDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "hipDeviceGetPCIBusId": [POINTER(c_char), c_int, c_int],
    "hipDeviceSynchronize": [],
    "hipEventCreateWithFlags": [POINTER(c_void_p), c_uint],
    "hipEventDestroy": [c_void_p],
    "hipEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
    "hipEventQuery": [c_void_p],
    "hipEventRecord": [c_void_p, c_void_p],
    "hipEventSynchronize": [c_void_p],
    "hipFree": [c_void_p],
    "hipHostFree": [c_void_p],
    "hipGetDeviceCount": [POINTER(c_int)],
    "hipGetDevicePropertiesR0600": [POINTER(c_char), c_int],
    "hipGraphDestroy": [c_void_p],
    "hipGraphExecDestroy": [c_void_p],
    "hipGraphInstantiateWithFlags": [POINTER(c_void_p), c_void_p, c_ulonglong],
    "hipGraphLaunch": [c_void_p, c_void_p],
    "hipGraphUpload": [c_void_p, c_void_p],
    "hipHostMalloc": [POINTER(c_void_p), c_size_t, c_uint],
    "hipMalloc": [POINTER(c_void_p), c_size_t],
    "hipMemGetInfo": [POINTER(c_size_t), POINTER(c_size_t)],
    "hipMemcpy": [c_void_p, c_void_p, c_size_t, c_int],
    "hipMemcpy2D": COPY,
    "hipMemcpy2DAsync": [*COPY, c_void_p],
    "hipMemcpyAsync": [c_void_p, c_void_p, c_size_t, c_int, c_void_p],
    "hipMemset": [c_void_p, c_int, c_size_t],
    "hipSetDevice": [c_int],
    "hipStreamBeginCapture": [c_void_p, c_int],
    "hipStreamCreateWithFlags": [POINTER(c_void_p), c_uint],
    "hipStreamDestroy": [c_void_p],
    "hipStreamEndCapture": [c_void_p, POINTER(c_void_p)],
    "hipStreamSynchronize": [c_void_p],
    "hipStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "hipModuleLoadData": [POINTER(c_void_p), c_void_p],
    "hipModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "hipModuleUnload": [c_void_p],
    "hipModuleLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
}
BINDING = {"hostMalloc": "hostAlloc", "hostFree": "freeHost", "graphInstantiateWithFlags": "graphInstantiate"}
"""HIP's names that are not CUDA's, as the binding has them."""
FUNCTION = 0x5000


class HipLibrary:
    """`driver` is a FakeDriver. `launches` are kernels that were launched: function, programs, threads, shared bytes,
    stream, and the first parameter."""

    def __init__(self, driver):
        self.binding, self.launches, self.modules = FakeRuntime(driver), [], []
        for name, arguments in SIGNATURES.items():
            implementation = CFUNCTYPE(c_int, *arguments)(self._answer(name, arguments))
            function = CFUNCTYPE(c_int)(ctypes.cast(implementation, c_void_p).value)
            function.kept = implementation
            setattr(self, name, function)

    def _answer(self, name, kinds):
        def answer(*arguments):
            if any(hasattr(kind, "contents") and not argument for kind, argument in zip(kinds, arguments, strict=True)
                   if name != "hipModuleLaunchKernel"):  # fmt: skip
                return INVALID_VALUE
            method = getattr(self, "_" + name, None)
            try:
                return (method(*arguments) if method is not None else self._forward(name, kinds, arguments)) or 0
            except CUDARuntimeError as error:
                return error.status
            except Misuse as error:  # an error cannot cross C
                self.binding.driver.misused.append(str(error))
                return 999

        return answer

    def _forward(self, name, kinds, arguments):
        """Asks the binding; places of results are pointers."""
        pairs = list(zip(kinds, arguments, strict=True))
        pointers = [argument for kind, argument in pairs if hasattr(kind, "contents")]
        values = [argument or 0 for kind, argument in pairs if not hasattr(kind, "contents")]
        short = name.removeprefix("hip")
        short = short[0].lower() + short[1:]
        answer = getattr(self.binding, BINDING.get(short, short))(*values)
        results = answer if isinstance(answer, tuple) else (answer,)
        for pointer, result in zip(pointers, results, strict=False):
            pointer[0] = result

    def _hipDeviceEnablePeerAccess(self, peer, flags):
        if flags or peer == self.binding.current:
            return INVALID_VALUE if flags else INVALID_DEVICE
        return self.binding.deviceEnablePeerAccess(peer)

    def _hipDeviceGetAttribute(self, value, attribute, device):
        value[0] = {63: 304, 19: 4 << 20}[attribute]

    def _hipDeviceGetPCIBusId(self, text, length, device):
        self._write(text, self.binding.deviceGetPCIBusId(device).encode()[: length - 1] + b"\0")

    def _hipGetDevicePropertiesR0600(self, properties, device):
        """The name is the first field, and gcnArchName one of the last."""
        self._write(properties, b"AMD Instinct MI300X\0")
        ctypes.memmove(ctypes.addressof(properties.contents) + 1160, b"gfx942:sramecc+:xnack-\0", 23)

    @staticmethod
    def _write(pointer, text):
        ctypes.memmove(ctypes.addressof(pointer.contents), text, len(text))

    def _hipEventCreateWithFlags(self, event, flags):
        if flags & ~0x2:
            return INVALID_VALUE
        event[0] = self.binding.eventCreateWithFlags(flags)
        return 0

    def _hipEventQuery(self, event):
        return self.binding.eventQuery(event)

    def _hipGraphInstantiateWithFlags(self, instance, graph, flags):
        if flags:
            return INVALID_VALUE
        instance[0] = self.binding.graphInstantiate(graph)
        return 0

    def _hipStreamWaitEvent(self, stream, event, flags):
        return INVALID_VALUE if flags else self.binding.streamWaitEvent(stream, event)

    def _hipModuleLoadData(self, module, image):
        assert ctypes.string_at(image, 4) == b"\x7fELF"
        module[0] = 0x4000 + len(self.modules)
        self.modules.append(module[0])

    def _hipModuleGetFunction(self, function, module, name):
        assert module in self.modules
        assert name
        function[0] = FUNCTION

    def _hipModuleUnload(self, module):
        self.modules.remove(module)

    def _hipModuleLaunchKernel(self, function, x, y, z, threads, rows, layers, shared, stream, parameters, extra):
        if threads * rows * layers > 1024 or x * threads >= 1 << 32:
            return INVALID_VALUE
        assert not extra
        first = ctypes.c_uint64.from_address(parameters[0]).value
        self.launches.append((function, x * y * z, threads, shared, stream, first))
        return 0


STREAM, MEMORY = 0x7FFF_1234_5678, 0x7F00_0000_0100
LT_KINDS = {0: "f32", 2: "f16", 14: "bf16"}
SETTING = [c_void_p, c_int, c_void_p, c_size_t]

LT_SIGNATURES = {
    "hipblasLtCreate": [POINTER(c_void_p)],
    "hipblasLtDestroy": [c_void_p],
    "hipblasLtGetVersion": [c_void_p, POINTER(c_int)],
    "hipblasLtMatmulDescCreate": [POINTER(c_void_p), c_int, c_int],
    "hipblasLtMatmulDescDestroy": [c_void_p],
    "hipblasLtMatmulDescSetAttribute": SETTING,
    "hipblasLtMatrixLayoutCreate": [POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64],
    "hipblasLtMatrixLayoutDestroy": [c_void_p],
    "hipblasLtMatrixLayoutSetAttribute": SETTING,
    "hipblasLtMatmulPreferenceCreate": [POINTER(c_void_p)],
    "hipblasLtMatmulPreferenceDestroy": [c_void_p],
    "hipblasLtMatmulPreferenceSetAttribute": SETTING,
    "hipblasLtMatmulAlgoGetHeuristic": [*[c_void_p] * 7, c_int, POINTER(c_uint64), POINTER(c_int)],
    "hipblasLtMatmul": [*[c_void_p] * 12, POINTER(c_uint64), c_void_p, c_size_t, c_void_p],
}
"""From hipblaslt.h."""
LT_ATTRIBUTES = {
    "hipblasLtMatmulDesc": {0: c_int, 1: c_int, 2: c_int, 3: c_void_p},
    "hipblasLtMatrixLayout": {0: c_int, 1: c_int64},
    "hipblasLtMatmulPreference": {1: c_uint64},
}


class HipBlasLt:
    """hipBLASLt in Python behind C's calling convention. `proposals` is the number of algorithms that it knows."""

    def __init__(self):
        self.calls, self.held, self.next, self.proposals = [], {}, 1000, 1
        for name, arguments in LT_SIGNATURES.items():
            implementation = CFUNCTYPE(c_int, *arguments)(self._answer(name))
            function = CFUNCTYPE(c_int)(ctypes.cast(implementation, c_void_p).value)
            function.kept = implementation
            setattr(self, name, function)

    def _answer(self, name):
        def answer(*arguments):
            self.calls.append(name)
            if name.endswith("Create"):
                self.next += 8
                self.held[self.next] = [name.removesuffix("Create"), arguments[1:], {}]
                arguments[0][0] = self.next
            elif name.endswith("Destroy"):
                del self.held[arguments[0]]
            elif name.endswith("SetAttribute"):
                descriptor, attribute, where, size = arguments
                kind = LT_ATTRIBUTES[name.removesuffix("SetAttribute")][attribute]
                assert size == ctypes.sizeof(kind)
                self.held[descriptor][2][attribute] = kind.from_address(where).value
            else:
                return getattr(self, "_" + name)(*arguments)
            return 0

        return answer

    def _hipblasLtGetVersion(self, handle, number):
        number[0] = 1200
        return 0

    def _hipblasLtMatmulAlgoGetHeuristic(self, handle, operation, a, b, c, d, preference, most, results, count):
        assert self.held[preference][2] == {1: WORKSPACE}
        assert most == 1
        results[0], count[0] = 77, min(most, self.proposals)
        return 0

    def _hipblasLtMatmul(
        self, handle, operation, scale, a, a_of, b, b_of, beta, c, c_of, d, d_of, algorithm, *workspace
    ):
        assert workspace == (MEMORY, WORKSPACE, STREAM)
        assert algorithm[0] == 77
        assert c_float.from_address(beta).value == 0
        (compute, scale_type), how = self.held[operation][1:]
        assert (compute, scale_type, how[2]) == (2, 0, 1)  # HIPBLAS_COMPUTE_32F, HIP_R_32F, no epilogue
        turned = [{111: False, 112: True}[how[n]] for n in (0, 1)]
        (kind, rows, columns, lda), (_, *_, ldb), (result, m, n, ldc) = (self.held[x][1] for x in (a_of, b_of, d_of))
        strides = [self.held[x][2][1] for x in (a_of, b_of, d_of)]
        multiply(Gemm(
            *turned, m, n, rows if turned[0] else columns, a, lda, strides[0], b, ldb, strides[1], d, ldc, strides[2],
            self.held[d_of][2][0], LT_KINDS[kind], LT_KINDS[result], c_float.from_address(scale).value,
        ))  # fmt: skip
        return 0
