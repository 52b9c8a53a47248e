"""Probes of what computes: Triton's kernels, cuBLAS and cuBLASLt, and libraries for attention, each in a capture."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gpu import primitives
from tests.gpu.probe_bench import Absent, Bench, Broken

EXTENT = 128
"""Rows and columns of the matrices."""

PRODUCT = f"""import triton
import triton.language as tl


@triton.jit
def product(left, right, result):
    rows = tl.arange(0, {EXTENT})[:, None]
    columns = tl.arange(0, {EXTENT})[None, :]
    inner = tl.arange(0, 64)
    total = tl.zeros(({EXTENT}, {EXTENT}), tl.float32)
    for start in range(0, 512, 64):
        a = tl.load(left + rows * 512 + start + inner[None, :])
        b = tl.load(right + (start + inner)[:, None] * {EXTENT} + columns)
        total = tl.dot(a, b, total)
    tl.store(result + rows * {EXTENT} + columns, total)
"""

ADDITION = """import triton
import triton.language as tl


@triton.jit
def addition(left, right, result):
    place = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(result + place, tl.load(left + place) + tl.load(right + place))
"""


def triton(bench: Bench) -> str:
    """A sum of two arrays."""
    left, right = (np.random.default_rng(seed).standard_normal(1024).astype("f4") for seed in (1, 2))
    took, found, shared = _launch(bench, "addition", ADDITION, (left, right), np.empty(1024, "f4"), 8, 3)
    bench.require_equal(found, left + right)
    return f"{1e3 * took:.1f} us, {shared} bytes of shared memory"


def shared(bench: Bench) -> str:
    """A product of matrices whose operands are fetched four steps ahead."""
    from einc_runtime.kernels.cuda.modules import STATIC_SHARED

    rng = np.random.default_rng(3)
    left, right = (rng.standard_normal(shape).astype("f2") for shape in ((EXTENT, 512), (512, EXTENT)))
    took, found, used = _launch(bench, "product", PRODUCT, (left, right), np.empty((EXTENT, EXTENT), "f4"), 1, 4)
    bench.require_equal(found, left.astype("f8") @ right.astype("f8"), 1e-5)
    if used <= STATIC_SHARED:
        raise Broken(f"the compiler uses {used} bytes of shared memory only: this shows nothing")
    return f"{1e3 * took:.1f} us, {used} bytes of shared memory"


def _launch(
    bench: Bench, name: str, text: str, given: tuple[Any, Any], result: Any, grid: int, stages: int
) -> tuple[float, Any, int]:
    """Milliseconds, the result, and the bytes of shared memory of a kernel."""
    from einc_runtime.kernels.cuda import kernel_cache
    from einc_runtime.kernels.cuda.modules import CupyModules, LoadedModules
    from einc_runtime.kernels.triton.launches import KernelLaunch, KernelSource

    kinds = tuple({"f2": "f16", "f4": "f32"}[array.dtype.str[1:]] for array in (*given, result))
    source = KernelSource(name, text, kinds, (True, True, True), stages=stages)
    modules, target = LoadedModules(kernel_cache.directories(), CupyModules()), bench.driver.target(bench.device)
    binary = modules.binary(source, target.architecture)
    pointers = (*map(bench.upload, given), bench.empty(result.nbytes))
    launch = modules.launch(KernelLaunch(source, grid, pointers), binary, 0, 0, target)
    took = bench.replay(launch)
    return took, bench.download(pointers[-1], result), binary.shared


def cublas(bench: Bench) -> str:
    from einc_runtime.kernels.cuda.cublas import WORKSPACE, Cublas

    library = Cublas(bench.driver.use)
    product, left, right, _, result = _product(bench)
    pointers = product.a, product.b, product.c
    took = bench.replay(library.launch(product, pointers, bench.empty(WORKSPACE), bench.device))
    bench.require_equal(bench.download(product.c, result).T, left.T.astype("f8") @ right.T.astype("f8"), 5e-3)
    return f"{library.version(bench.device)}, {1e3 * took:.1f} us"


def epilogue(bench: Bench) -> str:
    """A product, a matrix that is added, and relu."""
    from dataclasses import replace

    from einc_runtime.kernels.cuda.cublas import WORKSPACE
    from einc_runtime.kernels.cuda.cublaslt import CublasLt

    library = CublasLt(bench.driver.use)
    product, left, right, addend, result = _product(bench)
    product = replace(product, addend=bench.upload(addend), activation="relu")
    if not library.fits(product, bench.device):
        raise Broken("cuBLASLt proposes nothing for a small product")
    took = bench.replay(library.launch(product, bench.empty(WORKSPACE), bench.device))
    expected = np.maximum(left.T.astype("f8") @ right.T.astype("f8") + addend.T.astype("f8"), 0)
    bench.require_equal(bench.download(product.c, result).T, expected, 5e-3)
    return f"{1e3 * took:.1f} us"


def _product(bench: Bench) -> tuple[Any, Any, Any, Any, Any]:
    """A product of two matrices with columns one behind the other (arrays here have them as rows), both of these, a
    matrix that may be added, and one like the result."""
    from einc_runtime.kernels.triton.gemm import Gemm

    m, n, k = 128, 192, 256
    rng = np.random.default_rng(4)
    left, right, addend = (rng.standard_normal(shape).astype("f2") for shape in ((k, m), (n, k), (n, m)))
    pointers = bench.upload(left), bench.upload(right), bench.empty(2 * m * n)
    a, b, c = pointers
    product = Gemm(False, False, m, n, k, a, m, 0, b, k, 0, c, m, 0, 1, "f16", "f16")
    return product, left, right, addend, np.empty((n, m), "f2")


def products(bench: Bench) -> str:
    """One product with an addition and relu, and two with silu(x0) * x1 of both, with the first tile for this GPU."""
    from dataclasses import replace

    from einc_runtime.kernels.cuda import kernel_cache
    from einc_runtime.kernels.cuda.modules import CupyModules, LoadedModules
    from einc_runtime.kernels.triton.product import build_gated_product, build_product, list_tiles

    modules, target = LoadedModules(kernel_cache.directories(), CupyModules()), bench.driver.target(bench.device)
    product, left, right, addend, result = _product(bench)
    other = np.random.default_rng(5).standard_normal(left.shape).astype("f2")
    second = replace(product, a=bench.upload(other))
    one, two = left.T.astype("f8") @ right.T.astype("f8"), other.T.astype("f8") @ right.T.astype("f8")
    added = replace(product, addend=bench.upload(addend), activation="relu")
    ways = (
        (list_tiles((added,), target.architecture)[0], (added,), np.maximum(one + addend.T.astype("f8"), 0)),
        (list_tiles((product, second), target.architecture)[0], (product, second), one / (1 + np.exp(-one)) * two),
    )
    told = []
    for tile, own, expected in ways:
        if len(own) == 1:
            call = build_product(own[0], tile, target.multiprocessors)
        else:
            call = build_gated_product(own, "t0 = silu x0; t1 = mul t0 x1", tile, target.multiprocessors)
        binary = modules.binary(call.source, target.architecture)
        took = bench.replay(modules.launch(call, binary, 0, 0, target))
        bench.require_equal(bench.download(product.c, result).T, expected, 5e-3)
        told.append(f"{tile.name} {1e3 * took:.1f} us")
    return ", ".join(told)


def pools(bench: Bench) -> str:
    """What PyTorch allocates in a capture of ours comes from a pool of its own, and stays there."""
    torch = _torch()
    values = torch.arange(1 << 16, dtype=torch.float32, device="cuda")
    result = torch.zeros_like(values)
    torch.cuda.synchronize()

    def compute() -> None:
        own = values * 2 + 1
        result.copy_(own)

    took = _by_torch(bench, compute)
    bench.require_equal(result.cpu().numpy(), np.arange(1 << 16, dtype=np.float32) * 2 + 1)
    return f"PyTorch {torch.__version__}, {1e3 * took:.1f} us"


def attention(bench: Bench, name: str) -> str:
    """Causal attention of one sequence of 256 tokens in f16, against its definition, then in a capture."""
    from einc_runtime.kernels.cuda import attention_libraries as known
    from einc_runtime.kernels.cuda.varlen_attention import VarlenAttention, find_flaw

    torch = _torch()
    makers = {
        primitives.CUDNN: ("torch", "cudnn"), primitives.FLASH: ("torch", "flash"),
        primitives.FLASH2: ("flash", ""), primitives.FLASH3: ("flash3", ""), primitives.FLASH4: ("flash4", ""),
    }  # fmt: skip
    key, variant = makers[name]
    how = VarlenAttention((0, 256), (0, 256), 0, True, 0, 0.125)
    bounds = [torch.tensor((0, 256), dtype=torch.int32, device="cuda") for _ in range(2)]
    q, k, v = (torch.randn(heads, 256, 64, dtype=torch.float16, device="cuda").permute(1, 0, 2) for heads in (8, 2, 2))
    try:
        library = known.LIBRARIES[key][1]()
    except ImportError as error:
        raise Absent(f"not installed ({error})"[:200]) from error
    choices = [attend for own, attend in library.choices(q, k, v, how) if variant in ("", own)]
    if not choices:
        raise Absent("not for this GPU")
    flaw = find_flaw(choices[0], how, "f16", 4, 64, torch.device("cuda", 0))
    if flaw is not None:
        raise Broken(flaw)
    expected = choices[0](q, k, v, *bounds, how, torch.empty_like(q))[0].clone()
    result = torch.zeros_like(q)
    torch.cuda.synchronize()

    def compute() -> None:
        found = choices[0](q, k, v, *bounds, how, result)[0]
        if found is not result:
            result.copy_(found)

    took = _by_torch(bench, compute)
    bench.require_equal(result.float().cpu().numpy(), expected.float().cpu().numpy(), 2e-3)
    return f"{library.version}, {1e3 * took:.1f} us"


def cudnn_graph(bench: Bench) -> str:
    """Causal attention of two sequences of 128 tokens, all of it in our memory, against its definition."""
    from einc_runtime.kernels.cuda.cudnn_graphs import CudnnGraphs
    from einc_runtime.kernels.cuda.varlen_attention import VarlenAttention, attend_by_definition
    from einc_runtime.kernels.gpu import GpuArray

    _torch()
    try:
        library = CudnnGraphs()
    except ImportError as error:
        raise Absent(f"not installed ({error})"[:200]) from error
    how = VarlenAttention((0, 128, 256), (0, 128, 256), 0, True, 0, 0.125)
    rng, width = np.random.default_rng(6), 64
    held = [rng.standard_normal((256, heads, width)).astype("f2") for heads in (8, 2, 2)]  # by tokens

    def on_device(pointer: int, heads: int) -> GpuArray:
        return GpuArray(pointer, (heads, 256, width), (2 * width, 2 * width * heads, 2), "f16", bench.device)

    pointers = [*map(bench.upload, held), bench.empty(held[0].nbytes), bench.empty(4 * 8 * 256)]
    inputs = [on_device(pointer, array.shape[1]) for pointer, array in zip(pointers, held, strict=False)]
    outputs = [on_device(pointers[3], 8), GpuArray(pointers[4], (8, 256), (4 * 256, 4), "f32", bench.device)]
    kernel = library.prepare(how, inputs, outputs, bench.driver.target(bench.device))
    took = bench.replay(kernel.bind(bench.empty(max(kernel.workspace, 256)), 0))
    expected_o, expected_lse = attend_by_definition(*held, how)
    bench.require_equal(bench.download(pointers[3], held[0]), expected_o, 5e-3)
    bench.require_equal(bench.download(pointers[4], np.empty((8, 256), "f4")), expected_lse, 2e-3)
    return f"{library.version}, {1e3 * took:.1f} us, {kernel.workspace} bytes of workspace"


def _torch() -> Any:
    import torch

    from einc_runtime.kernels.cuda.attention_libraries import require_cuda

    require_cuda(torch)
    torch.set_grad_enabled(False)
    return torch


def _by_torch(bench: Bench, compute: Any) -> float:
    """Milliseconds of what PyTorch enqueues in our capture, with memory from a pool."""
    import torch

    from einc_runtime.kernels.cuda.fused_attention import _allocate_from

    pool = torch.cuda.MemPool()

    def enqueue(stream: int) -> None:
        own = torch.cuda.ExternalStream(stream, device=torch.device("cuda", bench.device))
        with torch.cuda.stream(own), _allocate_from(pool, bench.device):
            compute()

    took = bench.replay(enqueue)
    if pool.use_count() < 1:
        raise Broken("the pool did not outlast its use")
    return took


def multimem(bench: Bench) -> str:
    """Memory by handles; over several GPUs, also a sum that the switches between them compute."""
    from einc_runtime.execution.cuda.arenas import take_multicast_arenas
    from einc_runtime.execution.cuda.resources import CudaResources
    from einc_runtime.kernels.gpu import GpuArray

    driver, memory = bench.driver, bench.driver.virtual_memory()
    devices = list(range(driver.device_count()))
    for device in devices:
        driver.memory(device)  # CUDA is begun there
    unit = 0 if memory is None else memory.unit(devices)
    if memory is None or not unit:
        raise Absent("no memory by handles, or no multicast")
    if len(devices) < 2:
        memory.release(memory.create(bench.device, unit))
        return f"memory by handles in units of {unit >> 20} MB; one GPU, so that there is nothing to add"
    for one, other in ((one, other) for one in devices for other in devices if one != other):
        driver.enable_peer(one, other)
    resources, count = CudaResources(driver), 1 << 20
    try:
        arenas = take_multicast_arenas(driver, resources, memory, 4 * count, devices, unit)
        values = np.random.default_rng(8).integers(-9, 9, (len(devices), count)).astype("f4")
        for device, address, own in zip(devices, arenas.addresses, values, strict=True):
            driver.copy(device, address, own.nbytes, own.ctypes.data, own.nbytes, own.nbytes, 1)
        read, write = (
            GpuArray(pointer, (count,), (4,), "f32", bench.device)
            for pointer in (arenas.multicast, bench.empty(4 * count))
        )
        kernel = bench.kernels.prepare_multicast_sum(read, write, driver.target(bench.device))
        if kernel is None:
            raise Absent("multicast memory, and no instruction that adds")
        took = bench.replay(kernel.bind(0, 0))
        bench.require_equal(bench.download(write.pointer, values[0]), values.sum(0))
    finally:
        resources.require_release()
    return f"in units of {unit >> 20} MB; a sum of 4 MB of each of {len(devices)} GPUs in {1e3 * took:.1f} us"
