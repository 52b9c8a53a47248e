"""GPU kernels without a GPU and without Triton: every kernel is built, bound and found in caches."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from einc_runtime.environment import KERNEL_CACHE
from einc_runtime.errors import MissingFault
from einc_runtime.kernels import registry
from einc_runtime.kernels.base import COMPOSED_KERNELS, Invocation
from einc_runtime.kernels.cuda import kernel_cache, kernels, triton_compile
from einc_runtime.kernels.cuda.cublas import WORKSPACE
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.gpu import GpuTarget
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.kernels import LaunchCache, cache_key
from einc_runtime.kernels.triton.launches import SCRATCH, KernelLaunch, StatusPointer, Table, as_layout
from einc_runtime.plan.schema import Block
from tests.support.gpu_invocations import INVOCATIONS, JOINT_AGGREGATIONS, array, joint_launches

H100 = GpuTarget(0, "an H100", (9, 0), 132)


def plans():
    """Every invocation of the table, by its name."""
    for name, one in INVOCATIONS.items():
        yield name, one.launches()
    for name in JOINT_AGGREGATIONS:
        yield name, joint_launches(name)


def test_every_kernel_of_the_cpu_is_built_for_the_gpu_here():
    assert set(registry.PROVIDERS["numpy"]) == set(builders.KERNELS)
    assert set(registry.JOINT_AGGREGATIONS["numpy"]) == set(builders.JOINT_AGGREGATION_BUILDERS)
    # Operators of packages have tests of their own (tests/ops/test_custom_operators.py).
    assert {case.kernel for case in INVOCATIONS.values()} == set(builders.KERNELS) - {"custom"} | COMPOSED_KERNELS
    assert {one.aggregation for one in JOINT_AGGREGATIONS.values()} == set(builders.JOINT_AGGREGATION_BUILDERS)


def test_sources_do_not_depend_on_addresses_but_for_their_alignment():
    for name, case in INVOCATIONS.items():
        one, other, odd = (case.launches(shift) for shift in (0, 4096, 1))
        keys = [[s.source.key for s in plan.steps if isinstance(s, KernelLaunch)] for plan in (one, other, odd)]
        assert keys[0] == keys[1], name
        aligned = [s.source.aligned for s in one.steps if isinstance(s, KernelLaunch)]
        if any(any(flags) for flags in aligned) and name not in ("attention", "rope"):
            assert keys[0] != keys[2] or not keys[0]


def test_names_in_a_plan_cannot_become_code():
    bad = 'i"""\nimport os\n"""+__import__("os").system("x")#\\'
    bad = "".join(bad.split())
    attributes = {"program": "t0 = copy x0", "indices": f"{bad} -> {bad}"}
    views = [as_layout(array("f32", 3))]
    plan = builders.build_kernel(Invocation("map", attributes, views, views))
    text = plan.steps[0].source.text
    assert text.count('"""') == 2
    assert "__import__" not in text or "__import__(" not in text.split('"""')[2]


class Modules:
    """Records what a driver would do; addresses are handed out in order."""

    def __init__(self):
        self.calls, self.numbers = [], itertools.count(1)

    def use(self, device):
        self.calls.append(("use", device))

    def load(self, code, function, shared):
        self.calls.append(("load", function, shared))
        number = next(self.numbers)
        return number, number + 1000

    def unload(self, module):
        self.calls.append(("unload", module))

    def upload(self, data):
        self.calls.append(("upload", len(data)))
        return 0x7000_0000 + next(self.numbers)

    def release(self, pointer):
        self.calls.append(("release", pointer))

    def launch(self, function, grid, threads, shared, stream, parameters):
        found, values = [], ctypes.cast(parameters, ctypes.POINTER(ctypes.c_uint64))
        for n in range(16):
            if n and found[-2:] == [0, 0]:
                break
            found.append(ctypes.cast(values[n], ctypes.POINTER(ctypes.c_uint64))[0])
        self.calls.append(("launch", function, grid, threads, shared, stream, tuple(found[:-2])))


class Products:
    def __init__(self, log):
        self.log = log

    def version(self, device):
        return f"12.8.{device}"

    def launch(self, product, pointers, workspace, device):
        return lambda stream: self.log.append(("gemm", product.variant, pointers, workspace, stream))

    def close(self):
        self.log.append(("close",))


@pytest.fixture
def compiled(monkeypatch):
    """A stand-in for the compiler: the code of a kernel is its source."""
    made = []

    def compile_source(source, architecture):
        made.append((source.name, architecture))
        return KernelBinary(source.name, source.text.encode(), source.warps, 1024, "triton 9.9")

    monkeypatch.setattr(triton_compile, "compile_source", compile_source)
    monkeypatch.setattr(triton_compile, "version", lambda: "triton 9.9")
    return made


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(KERNEL_CACHE, raising=False)


def test_launches_have_pointers_workspace_and_status(compiled):
    modules = Modules()
    own = kernels.CudaKernels([], modules, Products(modules.calls))
    case = INVOCATIONS["append"]
    kernel = own.prepare_kernel(case.invocation(), H100)
    assert kernel.status_message is not None
    assert kernel.description.provider == "triton"
    assert [c[0] for c in modules.calls] == []  # compiled, and nothing is touched
    launch = kernel.bind(0x5000_0000, 0x6000_0000)
    before = len(modules.calls)
    launch(77)
    done = modules.calls[before:]
    assert [c[0] for c in done] == ["launch"] * 4
    assert {c[5] for c in done} == {77}
    assert done[1][6] == (0x5000_0000,)
    assert 0x6000_0000 in done[2][6]
    pointers = {x.pointer for x in (*case.inputs, *case.outputs)}
    assert pointers <= {p for c in done for p in c[6]}
    own.close()
    kinds = [c[0] for c in modules.calls]
    assert kinds.count("unload") == kinds.count("load") == 4
    assert kinds.count("release") == kinds.count("upload") > 0


class Epilogues:
    def __init__(self, log, fits=True):
        self.log, self.answer = log, fits

    def fits(self, product, device):
        self.log.append(("fits", product.variant, device))
        return self.answer

    def launch(self, product, workspace, device, algorithm=None):
        return lambda stream: self.log.append(("gemm", product, workspace, stream))

    def close(self):
        self.log.append(("close",))


def residual():
    """A contraction with an operand that is copied first, and the map that adds a residual."""
    shapes = (2, 16, 8), (32, 2, 8), (16, 32), (16, 32), (16, 32)
    x, w, o, r, y = (replace(array("f16", *shape), pointer=n << 20) for n, shape in enumerate(shapes, 1))
    places = [Block((0,) * len(a.shape), a.shape) for a in (x, w, o, r, y)]
    equation = {"equation": "h t d, f h d -> t f", "scale": 1.0}
    added = {"program": "t0 = add x0 x1", "indices": "t f, t f -> t f"}
    first = Invocation("contract", equation, [x, w], [o], places[:2], places[2:3])
    return first, Invocation("map", added, [r, o], [y], [places[3], places[2]], places[4:])


def test_epilogues_are_used_until_they_are_given_up(compiled):
    modules = Modules()
    own = kernels.CudaKernels([], modules, Products(modules.calls), Epilogues(modules.calls))
    assert not own.give_up("nothing is in use")
    first, then = residual()
    kernel = own.prepare_with_epilogue(first, then, 1, H100)
    assert (kernel.description.provider, kernel.description.version) == ("cublasLt+triton", "12.8.0")
    assert kernel.description.variant.endswith("gemm tn f16 32x16x16 add")
    kernel.bind(0x5000_0000, 0)(5)
    _, product, workspace, stream = modules.calls[-1]
    assert (product.a, product.b) == (first.inputs[1].pointer, 0x5000_0000)
    assert (product.c, product.addend) == (then.outputs[0].pointer, then.inputs[0].pointer)
    assert (workspace, stream) == (0x5000_0000 + kernel.workspace - WORKSPACE, 5)
    own.close()
    assert modules.calls.count(("close",)) == 2
    assert own.give_up("the contract at site 0 failed: cublasLtMatmul: status 15 (not supported)")
    assert own.notes == (
        "products of matrices take no epilogues with them: the contract at site 0 failed: "
        "cublasLtMatmul: status 15 (not supported)",
    )
    assert own.prepare_with_epilogue(first, then, 1, H100) is None
    assert not own.give_up("again")


def test_products_without_an_epilogue_are_two_kernels(compiled):
    log = []
    own = kernels.CudaKernels([], Modules(), Products(log), Epilogues(log, fits=False))
    first, then = residual()
    assert own.prepare_with_epilogue(first, then, 1, H100) is None
    assert log == [("fits", "gemm tn f16 32x16x16 add", 0)]
    assert own.prepare_with_epilogue(then, first, 0, H100) is None
    assert not own.give_up("nothing is in use")


def test_equal_kernels_are_compiled_and_loaded_once(compiled):
    modules = Modules()
    own = kernels.CudaKernels([], modules, Products(modules.calls))
    for _ in range(3):
        own.prepare_kernel(INVOCATIONS["map"].invocation(), H100).bind(0, 0)(1)
    assert len(compiled) == 1
    assert [c[0] for c in modules.calls].count("load") == 1


def test_products_get_workspace_of_their_own(compiled):
    modules = Modules()
    own = kernels.CudaKernels([], modules, Products(modules.calls))
    kernel = own.prepare_kernel(INVOCATIONS["contract of a strided operand"].invocation(), H100)
    assert (kernel.description.provider, kernel.description.version) == ("cublas+triton", "12.8.0")
    assert own.versions() == {"triton": "9.9", "cublas": "12.8.0"}
    scratch = kernel.workspace - WORKSPACE
    assert scratch > 0
    kernel.bind(0x5000_0000, 0)(5)
    name, _, pointers, workspace, stream = modules.calls[-1]
    assert (name, workspace, stream) == ("gemm", 0x5000_0000 + scratch, 5)
    assert all(p < SCRATCH for p in pointers)
    assert 0x5000_0000 in pointers


def test_compiled_kernels_are_found_without_a_compiler(compiled, tmp_path, monkeypatch):
    place = tmp_path / "plan.bin.kernels"
    source = INVOCATIONS["map"].launches().steps[0].source
    kernel_cache.store(source, "sm_90", triton_compile.compile_source(source, "sm_90"), place)
    compiled.clear()
    monkeypatch.setattr(triton_compile, "version", lambda: None)

    def none(source, architecture):
        raise MissingFault("no compiler")

    monkeypatch.setattr(triton_compile, "compile_source", none)
    own = kernels.CudaKernels([place], Modules())
    assert own.prepare_kernel(INVOCATIONS["map"].invocation(), H100).description.version == "9.9"
    with pytest.raises(MissingFault, match="compiled for sm_90 only, and this is sm_80"):
        own.prepare_kernel(INVOCATIONS["map"].invocation(), GpuTarget(0, "an A100", (8, 0), 108))
    with pytest.raises(MissingFault, match="no compiler"):
        own.prepare_kernel(INVOCATIONS["softmax"].invocation(), H100)


def test_kernels_compiled_in_a_run_are_kept(compiled):
    for _ in range(2):
        kernels.CudaKernels(kernel_cache.directories(), Modules()).prepare_kernel(INVOCATIONS["map"].invocation(), H100)
    assert len(compiled) == 1


def damaged(place):
    """Ways to damage a kernel's two files."""
    (note,) = place.glob("*.json")
    (code,) = place.glob("*.cubin")
    fields = json.loads(note.read_text())
    yield lambda: code.write_bytes(code.read_bytes() + b"x")
    yield lambda: code.unlink()
    for wrong in (b"", b"[]", b"{", b"\xff", b"[" * 100000):
        yield lambda wrong=wrong: note.write_bytes(wrong)
    for name, value in (("warps", 0), ("warps", True), ("warps", 64), ("shared", -1), ("function", "a b"),
                        ("function", 3), ("sha256", "00"), ("compiler", None)):  # fmt: skip
        yield lambda name=name, value=value: note.write_text(json.dumps({**fields, name: value}))


def test_damaged_kernels_are_not_found(compiled, tmp_path):
    source = INVOCATIONS["map"].launches().steps[0].source
    place = tmp_path / "kernels"
    good = triton_compile.compile_source(source, "sm_80")
    kernel_cache.store(source, "sm_80", good, place)
    for damage in list(damaged(place)):
        damage()
        assert kernel_cache.find(source, "sm_80", [place], None) is None
        kernel_cache.store(source, "sm_80", good, place)
        assert kernel_cache.find(source, "sm_80", [place], None) == good


def test_code_runs_on_later_architectures_of_its_generation(compiled, tmp_path):
    source = INVOCATIONS["map"].launches().steps[0].source
    for architecture in ("sm_80", "sm_90"):
        kernel_cache.store(source, architecture, triton_compile.compile_source(source, architecture), tmp_path)

    def found(architecture, compiler=None):
        return kernel_cache.find(source, architecture, [tmp_path / "missing", tmp_path], compiler) is not None

    assert [found(a) for a in ("sm_80", "sm_86", "sm_89", "sm_90")] == [True] * 4
    assert not any(found(a) for a in ("sm_100", "sm_103", "sm_120", "sm_75"))
    assert found("sm_90", "triton 9.9")
    assert not found("sm_90", "triton 1.0")
    assert kernel_cache.list_architectures(source, [tmp_path]) == ["sm_80", "sm_90"]


def test_the_key_depends_on_all_that_determines_a_kernel():
    from dataclasses import replace

    source = INVOCATIONS["map"].launches().steps[0].source
    changed = [
        replace(source, text=source.text + "#"), replace(source, types=("f64", *source.types[1:])),
        replace(source, aligned=tuple(not a for a in source.aligned)), replace(source, warps=8),
        replace(source, stages=1), replace(source, name="other"),
    ]  # fmt: skip
    assert len({source.key, *(other.key for other in changed)}) == 7


def test_cubin_checksums_are_of_the_code(compiled, tmp_path):
    source = INVOCATIONS["map"].launches().steps[0].source
    kernel_cache.store(source, "sm_90", triton_compile.compile_source(source, "sm_90"), tmp_path)
    (note,), (code,) = tmp_path.glob("*.json"), tmp_path.glob("*.cubin")
    assert json.loads(note.read_text())["sha256"] == hashlib.sha256(code.read_bytes()).hexdigest()
    (text,) = tmp_path.glob("*.py")
    assert text.read_text() == source.text


def test_the_driver_is_called_as_cupy_binds_it():
    """The functions exist and take as many arguments as their documentation says."""
    pytest.importorskip("cupy")
    from cupy.cuda import driver, runtime

    for name, count in {"moduleLoadData": 1, "moduleGetFunction": 2, "moduleUnload": 1, "funcSetAttribute": 3,
                        "launchKernel": 11}.items():  # fmt: skip
        signature = getattr(driver, name).__doc__.split("(", 1)[1].split(")")[0]
        assert len(signature.split(",")) == count, name
    assert issubclass(driver.CUDADriverError, Exception)
    assert {"malloc", "free", "memcpy", "memcpyHostToDevice", "streamSynchronize"} <= set(dir(runtime))


def test_arguments_are_addresses_tables_or_the_status_word():
    calls = [step for _, plan in plans() for step in plan.steps if isinstance(step, KernelLaunch)]
    kinds = {type(argument) for call in calls for argument in call.arguments}
    assert kinds == {int, Table, StatusPointer}
    assert np.frombuffer(Table.of(np.arange(3)).data, np.int64).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", INVOCATIONS)
def test_launches_are_moved_to_other_addresses(name):
    """The launches of a repeated invocation are built once, and are those that would be built for its addresses."""
    plans, made = LaunchCache(), []
    for shift in (0, 4096, 1 << 20, 16):  # the last is aligned otherwise
        invocation = INVOCATIONS[name].invocation(shift)
        key, arrays = cache_key(invocation, "sm_90"), [*invocation.inputs, *invocation.outputs]
        launches = plans.get(key, arrays, partial(planned, made, invocation))
        assert launches == INVOCATIONS[name].launches(shift)
    assert len(made) <= 2 or launches.has_addresses


def test_inputs_that_are_one_are_one_argument(compiled):
    """Whatever was prepared before: launches of other operands of the same form are remembered."""
    modules, case = Modules(), INVOCATIONS["attention of latent rows"]
    own = kernels.CudaKernels([], modules, Products(modules.calls))
    q, k, v = case.inputs
    for keys, values in ((k, v), (k, k), (v, v), (k, v)):
        kernel = own.prepare_kernel(replace(case, inputs=(q, keys, values)).invocation(), H100)
        launch, before = kernel.bind(0x5000_0000, 0x6000_0000), len(modules.calls)
        launch(77)
        first = next(call for call in modules.calls[before:] if call[0] == "launch")
        assert {x.pointer for x in (k, v)} & {*first[6]} == {keys.pointer, values.pointer}


def planned(made, invocation, views):
    made.append(invocation.name)
    count = len(invocation.inputs)
    return builders.build_kernel(invocation.on(views[:count], views[count:]))
