"""Triton compiles every kernel for A100 and H100 without a GPU; equal sources give equal code."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from einc_runtime.custom import load_custom_operator
from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.errors import KernelFault
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.hip_driver import HipDriver, HipError, HipRuntime
from einc_runtime.execution.cuda.precompile import list_sources
from einc_runtime.kernels.base import GatedInvocations, Invocation
from einc_runtime.kernels.cuda import kernel_cache
from einc_runtime.kernels.cuda.kernels import open_hip_kernels
from einc_runtime.kernels.cuda.triton_compile import compile_source, version
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.builders import ORDERED, build_kernel
from einc_runtime.kernels.triton.early_read import build_early_read
from einc_runtime.kernels.triton.launches import KernelLaunch, KernelSource, as_layout
from einc_runtime.kernels.triton.multicast_sum import build_multicast_sum
from einc_runtime.kernels.triton.product import build_gated_product, build_product, list_tiles
from einc_runtime.kernels.triton.quantized import build_stored_gated
from einc_runtime.plan.scalar_functions import CAST, SCALAR_FUNCTIONS
from einc_runtime.plan.schema import QUANTIZED, Block
from tests.support.aggregate_cases import CASES as AGGREGATE_CASES
from tests.support.compiled_plans import compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.custom_packages import install_spectra, make_site
from tests.support.gpu_invocations import INVOCATIONS, JOINT_AGGREGATIONS, array, attention, joint_launches, made
from tests.support.hip_fake import HipBlasLt, HipLibrary
from tests.support.launch_cases import compile_cut_step, compile_gathering_step, compile_step
from tests.support.product_cases import ProductCase
from tests.support.sampling import one_in

__all__ = ["install_spectra", "make_site"]
assert os.environ.get("TRITON_INTERPRET", "0") != "1", "the interpreter compiles nothing"

COMPUTED = [kind for kind in ITEMSIZE if kind not in QUANTIZED]
"""Types that scalar programs have; the others are only stored."""


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch):
    """Empties Triton's own cache, so that it compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def sources(plan):
    return [step.source for step in plan.steps if isinstance(step, KernelLaunch)]


MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx90a": 64 << 10, "gfx942": 64 << 10}
"""Shared memory that a program may have."""


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", ["logaddexp", "smallest", "welford", "then", "either"])
def test_aggregations_of_a_model_compile(name, ordered):
    operator = AGGREGATE_CASES[name].operator("f32")
    attributes = {**dict(operator.kernel.attributes), **({"reproducible": True} if ordered else {})}
    inputs, outputs = (
        [as_layout(array(desc.dtype.value, *desc.shape, at=number)) for number, desc in enumerate(descs, start)]
        for start, descs in ((0, operator.inputs), (4, operator.outputs))
    )
    blocks = [[Block((0,) * len(x.shape), x.shape) for x in arrays] for arrays in (inputs, outputs)]
    for source in sources(build_kernel(Invocation("index", attributes, inputs, outputs, *blocks))):
        assert compile_source(source, "sm_90").code[:4] == b"\x7fELF"


@pytest.mark.parametrize("compile_plan", [compile_cut_step, compile_gathering_step])
@pytest.mark.parametrize("architecture", MEMORY)
def test_sums_out_of_the_memory_of_all_gpus_compile(architecture, compile_plan):
    bundle = compile_plan(3)
    waiting = [s for s in list_sources(bundle, architecture, [(0, 1, 2)]) if "_of_peers" in s.name]
    assert {source.name.partition("_of")[0] for source in waiting} <= {"map", "row_chain"}
    is_gathering = compile_plan is compile_gathering_step
    assert waiting
    assert all(("tl.debug_barrier()" in source.text) == is_gathering for source in waiting)
    for source in waiting:
        code = compile_source(source, architecture).code
        assert code[:4] == b"\x7fELF"


def test_a_plan_for_gpus_of_amd_is_captured_by_hip(tmp_path):
    """HIP gets code for gfx942 from Triton, and launches of wavefronts, in a graph over two GPUs."""
    text = "dim n = 6; dim d = 40\ninput x : f32[n, d]\nweight g : f32[d]\noutput y = rmsnorm(silu(x), g, eps=1e-6)"
    bundle = compiled(text, 2)
    fake = FakeDriver(2, seed=3)
    library = HipLibrary(fake)
    runtime = HipRuntime(library)
    kernels = open_hip_kernels(runtime, HipError, [tmp_path], HipBlasLt())
    executor = CudaExecutor(bundle, driver=HipDriver(runtime), kernels=kernels)
    assert {kernel.provider for kernel in executor.facts().cuda.kernels} <= {"triton", "cuda"}
    assert library.launches
    assert {threads % 64 for _, _, threads, *_ in library.launches} == {0}
    assert len(library.modules) == len(set(library.modules)) > 0
    executor.close()
    assert not fake.leaks()
    assert not library.modules


@pytest.mark.parametrize(("name", "architecture"), one_in(5, [*INVOCATIONS, *JOINT_AGGREGATIONS], ["sm_80", "sm_90"]))
def test_every_kernel_compiles(name, architecture, tmp_path):
    known = name in INVOCATIONS
    plan = INVOCATIONS[name].launches(architecture=architecture) if known else joint_launches(name)
    for source in sources(plan):
        binary = compile_source(source, architecture)
        assert binary.code[:4] == b"\x7fELF"
        assert binary.function == source.name
        assert source.name.encode() in binary.code
        assert binary.warps == source.warps
        assert binary.shared <= MEMORY[architecture]
        kernel_cache.store(source, architecture, binary, tmp_path)
        assert kernel_cache.find(source, architecture, [tmp_path], version()) == binary


@pytest.mark.parametrize("architecture", MEMORY)
def test_rows_that_are_keys_and_values_are_once_in_shared_memory(architecture):
    apart = INVOCATIONS["attention of latent rows"]
    once = replace(apart, inputs=(*apart.inputs[:2], apart.inputs[1]))
    needed = [
        compile_source(sources(case.launches(architecture=architecture))[0], architecture).shared
        for case in (apart, once)
    ]
    assert needed[1] <= min(needed[0], MEMORY[architecture])


def test_the_kernel_of_a_package_compiles(spectra):
    """`energy` of docs/custom-operators.md."""
    signature = str(load_custom_operator("energy").signature)
    attributes = {"operator": "energy", "signature": signature, "settings": "{}"}
    views = [as_layout(array("f32", *shape)) for shape in ((40, 96), (96,), (40,))]
    for source in sources(build_kernel(Invocation("custom", attributes, views[:2], views[2:]))):
        assert compile_source(source, "sm_90").code[:4] == b"\x7fELF"


def far(array):
    """The same array with a stride along its first axis that needs 64-bit offsets."""
    if len(array.shape) < 2:
        return array
    return replace(array, strides=(((1 << 32) + 16) * array.itemsize, *array.strides[1:]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in INVOCATIONS if name != "contract of integers"])
def test_every_kernel_compiles_with_wide_offsets(name):
    one = INVOCATIONS[name]
    plan = replace(one, inputs=tuple(map(far, one.inputs)), outputs=tuple(map(far, one.outputs))).launches()
    for source in sources(plan):
        assert compile_source(source, "sm_90").function == source.name


def every_function(kind):
    """A program of all functions that there are for a type, one after another, and of casts to all types and back."""
    steps = []

    def step(text):
        steps.append(f"t{len(steps)} = {text}")
        return f"t{len(steps) - 1}"

    value = "x0"
    for name, function in SCALAR_FUNCTIONS.items():
        if kind not in function.accepts or name.startswith(CAST):
            continue
        arity = function.arity
        if function.result == "bool":
            operands = f"{value} x1" if arity == 2 else value
            value = step(f"where {step(f'{name} {operands}')} {value} x1")
        elif arity == 1:
            value = step(f"{name} {value}")
        elif arity == 2:
            value = step(f"{name} {value} x1")
            value = step(f"{name} {value} {'true' if kind == 'bool' else 3}")
        else:
            value = step(f"where x2 {value} x1")
    for other in COMPUTED:
        value = step(f"cast:{kind} {step(f'cast:{other} {value}')}")
    if kind in ("f32", "f64"):
        value = step(f"pow {step(f'pow {value} 2.0')} 0.5")
    return "; ".join(steps)


@pytest.mark.parametrize(("kind", "architecture"), one_in(2, COMPUTED, ["sm_80", "sm_90"]))
def test_every_function_compiles(kind, architecture):
    program = every_function(kind)
    operands = [array(kind, 30, 70), array(kind, 70), array("bool", 30, 70)]
    indices = "i j, j, i j -> i j"
    one = made("map", {"program": program, "indices": indices}, operands, array(kind, 30, 70))
    (source,) = sources(one.launches())
    assert compile_source(source, architecture).function == source.name


@pytest.mark.parametrize("kind", ["f64", "bf16"])
def test_attention_compiles_for_other_types(kind):
    wide = "f64" if kind == "f64" else "f32"
    operands = [array(kind, 8, 100, 64), array(kind, 2, 100, 64), array(kind, 2, 100, 64)]
    one = made("attention", attention([100], [100]), operands, array(kind, 8, 100, 64), array(wide, 8, 100))
    (source,) = sources(one.launches())
    assert compile_source(source, "sm_90").function == source.name


@pytest.mark.parametrize(
    ("kind", "aggregation"), one_in(2, ["f64", "i32", "i64", "bf16"], ["sum", "prod", "max", "min"])
)
def test_every_aggregation_compiles(kind, aggregation):
    attributes = {"program": "t0 = copy x0", "indices": "i j -> i", "aggregation": aggregation}
    for source in sources(made("reduce", attributes, [array(kind, 33, 700)], array(kind, 33)).launches()):
        assert compile_source(source, "sm_90").function == source.name


def test_equal_sources_are_equal_code(tmp_path, monkeypatch):
    (source,) = sources(INVOCATIONS["rmsnorm"].launches())
    first = compile_source(source, "sm_90")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    assert compile_source(source, "sm_90") == first
    assert compile_source(source, "sm_80").code != first.code


def machine_code(source, architecture, tmp_path):
    """The instructions for an architecture, as text."""
    import shutil
    import subprocess

    from triton import knobs

    file = tmp_path / "kernel.cubin"
    file.write_bytes(compile_source(source, architecture).code)
    tool = knobs.nvidia.cuobjdump.path
    assert shutil.which(tool)
    return subprocess.run([tool, "-sass", str(file)], capture_output=True, text=True, check=True).stdout


def test_attention_uses_tensor_cores(tmp_path):
    """The machine code for an H100 has warp-group products of matrices."""
    (source,) = sources(INVOCATIONS["attention"].launches())
    text = machine_code(source, "sm_90", tmp_path)
    assert "HGMMA" in text
    assert "STL" not in text, "registers are spilled"


@pytest.mark.parametrize(
    ("name", "architecture"),
    one_in(5, [name for name, case in INVOCATIONS.items() if case.kernel in ORDERED], ["sm_80", "sm_90"]),
)
def test_every_kernel_of_reproducible_plans_compiles(name, architecture):
    for source in sources(mark(INVOCATIONS[name]).launches(architecture=architecture)):
        assert compile_source(source, architecture).shared <= MEMORY[architecture]


def mark(case):
    return replace(case, attributes={**case.attributes, "reproducible": True})


@pytest.mark.parametrize(("architecture", "expected"), [("sm_80", "HMMA.16816.F32.BF16"), ("sm_90", "HGMMA.64x64x16")])
def test_products_of_every_block_have_the_same_instructions(architecture, expected, tmp_path):
    """Whatever the numbers of rows and columns and the layout are, and wherever operands begin."""
    found = []
    for rows, columns, by_rows, shift in ((1, 4096, True, 0), (512, 33, False, 2), (64, 64, True, 16)):
        weight = array("bf16", 300, columns) if by_rows else array("bf16", 300, columns, strides=(1, 301))
        operands = [array("bf16", rows, 300), weight]
        one = mark(made("contract", {"equation": "i k, k j -> i j"}, operands, array("bf16", rows, columns)))
        (source,) = sources(one.launches(shift))
        text = machine_code(source, architecture, tmp_path)
        found.append(set(re.findall(r"H[GM]*MMA[.\w]+", text)))
        assert "STL" not in text
    assert found[0] == found[1] == found[2]
    assert all(name.startswith(expected) for name in found[0])
    assert found[0]


def test_what_is_not_fused_has_no_fused_instruction(tmp_path):
    program = {"program": "t0 = mul x0 x1; t1 = add t0 x1", "indices": "i, i -> i"}
    case = made("map", program, [array("f32", 500), array("f32", 500)], array("f32", 500))
    fused = ["FFMA" in machine_code(*sources(one.launches()), "sm_90", tmp_path) for one in (case, mark(case))]
    assert fused == [True, False]


PRODUCT = ProductCase(14336, 1024, 4096, added=("addend",))
MANY_MATRICES = ProductCase(1000, 1003, 520, batch=3, kind="bf16", result="bf16", gap=4)


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        *((PRODUCT, architecture) for architecture in ("sm_80", "sm_90", "sm_100")),
        (MANY_MATRICES, "sm_80"),
        (replace(PRODUCT, n=1), "sm_90"),
        (replace(PRODUCT, kind="f32", result="f32"), "sm_90"),
    ],
    ids=str,
)
def test_every_tile_of_a_product_compiles(case, architecture):
    product = case.product({name: (n + 1) << 40 for n, name in enumerate(("a", "b", "c", "addend"))})
    pair = replace(product, addend=0), replace(product, addend=0, a=5 << 40)
    launches = [build_product(product, tile, 132) for tile in list_tiles((product,), architecture)]
    launches += [
        build_gated_product(pair, "t0 = silu x0; t1 = mul t0 x1", tile, 132) for tile in list_tiles(pair, architecture)
    ]
    assert len(launches) >= 4
    for launch in launches:
        binary = compile_source(launch.source, architecture)
        assert binary.code[:4] == b"\x7fELF"
        assert binary.shared <= MEMORY[architecture]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_products_use_tensor_cores(kind, tmp_path):
    """The machine code for an H100 multiplies by warp groups, fetches ahead, and spills no registers."""
    product = replace(PRODUCT, added=(), kind=kind, result=kind).product({"a": 1 << 40, "b": 2 << 40, "c": 3 << 40})
    pair = product, replace(product, a=5 << 40)
    launches = [build_product(product, tile, 132) for tile in list_tiles((product,), "sm_90")]
    launches += [
        build_gated_product(pair, "t0 = silu x0; t1 = mul t0 x1", tile, 132) for tile in list_tiles(pair, "sm_90")
    ]
    for launch in launches:
        text = machine_code(launch.source, "sm_90", tmp_path)
        assert "HGMMA" in text
        bulk = "make_tensor_descriptor" in launch.source.text
        assert ("UTMALDG" if bulk else "LDGSTS") in text
        assert compile_source(launch.source, "sm_90").scratch == (128 * (len(launch.arguments) - 1) if bulk else 0)
        assert "STL" not in text, f"{launch.source.name} spills registers"


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_sums_over_gpus_are_one_instruction_for_16_bytes(kind, architecture, tmp_path):
    """Rows of a larger array, into a dense one; the switches add, and 16 bytes are stored at once."""
    size = ITEMSIZE[kind]
    read = as_layout(GpuArray(1 << 40, (100, 1024), (4096 * size, size), kind, 0))
    write = as_layout(GpuArray(2 << 40, (100, 1024), (1024 * size, size), kind, 0))
    (launch,) = build_multicast_sum(read, write, (9, 0)).steps
    text = machine_code(launch.source, architecture, tmp_path)
    assert "LDGMC" in text
    assert "STG.E.128" in text


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_reading_ahead_asks_for_a_line_of_the_cache(architecture, tmp_path):
    (launch,) = build_early_read([GpuArray(1 << 40, (1000, 512), (1024, 2), "f16", 0)], 1 << 20).steps
    text = machine_code(launch.source, architecture, tmp_path)
    assert text.count("CCTL.E.PF2") == 2  # two lines for each thread
    assert "LDG" not in text


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("stored", ["f8e4m3", "i4x2"])
def test_two_products_with_stored_weights_and_their_map_compile(stored, architecture):
    width, scale = (256, "bf16") if stored == "i4x2" else (512, "f32")
    x, y, *middle = (as_layout(array("bf16", 8, n, at=n)) for n in (512, 256, 257, 258))
    middle = [view[:, :256] for view in middle]
    weights = [[as_layout(array(stored, 256, width, at=n)), as_layout(array(scale, 256, 4, at=n + 1))] for n in (1, 3)]
    product = {"equation": "t k, n k -> t n", "group": 128}
    pairs = zip(weights, middle, strict=True)
    parts = [Invocation("quantized_contract", product, [x, *weight], [result]) for weight, result in pairs]
    joined = {"program": "t0 = silu x0; t1 = mul t0 x1", "indices": "t n, t n -> t n"}
    call = build_stored_gated(GatedInvocations(*parts, Invocation("map", joined, middle, [y]), (0, 1)))
    assert compile_source(call.source, architecture).code


@pytest.mark.parametrize(
    ("architecture", "instruction"), [("sm_89", "QMMA"), ("sm_90", "QGMMA"), ("sm_100", "UTCQMMA")]
)
def test_groups_of_8_bits_use_the_tensor_cores(architecture, instruction, tmp_path):
    arrays = ("bf16", 512, 1024), ("f8e4m3", 768, 1024), ("f32", 768, 8)
    views = [as_layout(array(*each, at=n)) for n, each in enumerate((*arrays, ("bf16", 512, 768)))]
    given = {"equation": "t k, n k -> t n", "group": 128}
    sequence = build_kernel(Invocation("rounded_contract", given, views[:3], views[3:]), architecture)
    texts = [machine_code(step.source, architecture, tmp_path) for step in sequence.steps]
    assert instruction in texts[1]
    assert "LDL" not in texts[1], "no registers are spilled"


def test_an_error_of_triton_is_one_line():
    source = KernelSource(
        "wrong", "import triton\n\n\n@triton.jit\ndef wrong(x):\n    undefined(x)\n", ("f32",), (True,)
    )
    with pytest.raises(KernelFault, match="Triton could not compile wrong for sm_90") as caught:
        compile_source(source, "sm_90")
    assert "\n" not in caught.value.message
    assert "undefined" in caught.value.message


@pytest.mark.parametrize(("name", "architecture"), one_in(9, [*INVOCATIONS, *JOINT_AGGREGATIONS], ["gfx90a", "gfx942"]))
def test_every_kernel_compiles_for_amd(name, architecture, tmp_path):
    known = name in INVOCATIONS
    plan = INVOCATIONS[name].launches(architecture=architecture) if known else joint_launches(name)
    for source in sources(plan):
        binary = compile_source(source, architecture)
        assert binary.code[:4] == b"\x7fELF"
        assert source.name.encode() in binary.code
        assert binary.shared <= MEMORY[architecture]
        kernel_cache.store(source, architecture, binary, tmp_path)
        assert kernel_cache.find(source, architecture, [tmp_path], version()) == binary
        assert kernel_cache.find(source, "sm_90", [tmp_path], version()) is None


@pytest.mark.parametrize("architecture", one_in(3, ["sm_80", "sm_90", "sm_100", "gfx942"]))
def test_launches_of_a_decode_step_compile(architecture):
    """The step of two layers of a small model on three GPUs, one of which reads what the others have."""
    bundle = compile_step(3, "bf16")
    names = ("row_chain", "places", "few_products", "gated_product")
    chosen = [source for source in list_sources(bundle, architecture) if source.name.startswith(names)]
    assert {source.name.rpartition("_")[0] for source in chosen} >= {"places", "row_chain"}
    for source in chosen:
        binary = compile_source(source, architecture)
        assert binary.function == source.name
        assert binary.shared <= MEMORY[architecture]
