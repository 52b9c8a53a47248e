"""Choices of algorithms: what they depend on, their file, and kernels that follow them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from einc_runtime.errors import KernelFault, ReadFault
from einc_runtime.kernels.base import GatedInvocations, Invocation
from einc_runtime.kernels.cuda.kernels import CudaKernels
from einc_runtime.kernels.cuda.own_products import OwnProducts
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.cuda.tuning import (
    MAX_TUNING_BYTES,
    TunedProduct,
    Tuning,
    encode_tunings,
    find_tuning,
    merge_tunings,
    name_product,
    read_tunings,
)
from einc_runtime.kernels.gpu import GpuArray, GpuTarget, ResultBytes
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.plan.schema import Block

H100 = GpuTarget(1, "an H100", (9, 0), 132)
LIBRARY = "cublasLt 130002"
PRODUCT = Gemm(True, False, 40, 24, 56, 1 << 20, 56, 0, 2 << 20, 56, 0, 3 << 20, 40, 0, 1, "f16", "f16")


def test_a_name_has_all_that_the_time_depends_on():
    names = {name_product(PRODUCT), name_product(replace(PRODUCT, a=5 << 20, scale=0.5))}
    assert names == {"gemm tn f16 40x24x56, leading 56 56 40, strides 0, aligned 256 256 256 256 256"}
    others = [
        replace(PRODUCT, k=48),
        replace(PRODUCT, lda=64),
        replace(PRODUCT, a=PRODUCT.a + 16),
        replace(PRODUCT, addend=4 << 20),
        replace(PRODUCT, batch=3, stride_a=2240, stride_b=1344, stride_c=960),
        replace(PRODUCT, kind="bf16", result="bf16"),
        replace(PRODUCT, activation="relu"),
    ]
    assert len({name_product(PRODUCT), *map(name_product, others)}) == 1 + len(others)


def test_a_file_keeps_choices_and_new_ones_count(tmp_path):
    one, other = (TunedProduct(bytes([n]) * 64, 0.5 * n, 2.0) for n in (1, 2))
    known = (Tuning("A", "1", {"p": one, "q": one}), Tuning("B", "1", {"p": other}))
    merged = merge_tunings(
        known,
        [
            Tuning("A", "1", {"p": other}),
            Tuning("A", "2", {"r": TunedProduct(b"", 1.0, 1.0), "s": TunedProduct("a tile, a compiler", 1.0, 2.0)}),
        ],
    )
    path = tmp_path / "plan.bin.tuning.json"
    path.write_text(encode_tunings(merged))
    assert read_tunings(path) == merged
    assert find_tuning(merged, "A", "1").choices == {"p": other, "q": one}
    assert find_tuning(merged, "A", "2").choices["r"].algorithm == b""
    assert find_tuning(merged, "B", "2") is None
    assert read_tunings(tmp_path / "nothing") == ()


GOOD = json.loads(encode_tunings([Tuning("A", "1", {"p": TunedProduct(bytes(64), 1.0, 2.0)})]))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=2),
        lambda d: d.update(more=1),
        lambda d: d.update(tunings={}),
        lambda d: d["tunings"][0].pop("gpu"),
        lambda d: d["tunings"][0].update(gpu=3),
        lambda d: d["tunings"][0]["products"][0].update(algorithm="00"),
        lambda d: d["tunings"][0]["products"][0].update(algorithm="zz"),
        lambda d: d["tunings"][0]["products"][0].update(ms=True),
        lambda d: d["tunings"][0]["products"][0].update(ms=-1),
        lambda d: d["tunings"][0]["products"][0].update(kernel="128x128x64 w8 s4, triton 3.9.0"),
        lambda d: d["tunings"][0]["products"][0].update(kernel=7, algorithm=""),
    ],
)
def test_files_of_others_are_refused_by_name(tmp_path, change):
    document = json.loads(json.dumps(GOOD))
    change(document)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ReadFault, match="no tuning of a plan: ") as caught:
        read_tunings(path)
    assert caught.value.where == str(path)


def test_what_is_no_json_or_too_large_is_refused(tmp_path):
    path = tmp_path / "t.json"
    for content in (b"\x80", b"[", b" " * (MAX_TUNING_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(ReadFault, match=r"no tuning of a plan|MiB"):
            read_tunings(path)
    with pytest.raises(ReadFault, match="cannot read"):
        read_tunings(tmp_path)


class Drivers:
    def use(self, device):
        self.device = device


class Modules:
    compiler = ""

    def __init__(self):
        self.driver = Drivers()

    use = Drivers.use


class Products:
    def version(self, device):
        return "13.0.2"

    def launch(self, product, pointers, workspace, device):
        return lambda stream: ("cublas", product, stream)

    def close(self):
        pass


class Algorithm:
    def __init__(self, record):
        self.record = record


class Library(Products):
    """Proposes three algorithms; it knows records that do not begin with 9."""

    version = LIBRARY

    def fits(self, product, device):
        return True

    def proposals(self, product, device, limit):
        return [Algorithm(bytes([n]) * 64) for n in (1, 2, 3)][:limit]

    def restore(self, record, product, device):
        return None if record[0] == 9 else Algorithm(record)

    def launch(self, product, workspace, device, algorithm=None):
        return lambda stream: (algorithm.record[0] if algorithm else "first", product, stream)


def bound(product, *tunings):
    kernels = CudaKernels([], Modules(), Products(), Library(), tunings)
    kernel = kernels.prepare(LaunchSequence((product,)), H100)
    return kernels, kernel, kernel.bind(9 << 20, 0)


def tuned(product, first, gpu=H100.name, library=LIBRARY):
    return Tuning(gpu, library, {name_product(product): TunedProduct(bytes([first]) * 64, 1.0, 2.0)})


def test_products_are_computed_by_the_algorithm_that_was_chosen_for_this_gpu():
    assert bound(PRODUCT)[2](5)[0] == "cublas"
    _, kernel, launch = bound(PRODUCT, tuned(PRODUCT, 2))
    assert launch(5)[0] == 2
    assert (kernel.description.provider, kernel.description.variant.endswith(", tuned")) == ("cublasLt", True)
    for own in (tuned(PRODUCT, 2, gpu="an A100"), tuned(PRODUCT, 2, library="cublasLt 1"), tuned(PRODUCT, 9)):
        assert bound(PRODUCT, own)[2](5)[0] == "cublas"
    assert (
        bound(PRODUCT, Tuning(H100.name, LIBRARY, {name_product(PRODUCT): TunedProduct(b"", 1, 1)}))[2](5)[0]
        == "cublas"
    )
    residual = replace(PRODUCT, addend=7 << 20)
    assert bound(residual)[2](5)[0] == "first"
    assert bound(residual, tuned(residual, 3))[2](5)[0] == 3


def test_an_algorithm_that_is_not_known_here_is_told_once():
    kernels, _, _ = bound(PRODUCT, tuned(PRODUCT, 9))
    assert [note for note in kernels.notes if "tune it again" in note] == list(kernels.notes)
    assert len(kernels.notes) == 1


def test_alternatives_are_the_usual_way_and_the_proposals_once_for_each_kind():
    kernels, _, _ = bound(PRODUCT)
    residual = replace(PRODUCT, addend=7 << 20)
    for product in (replace(PRODUCT, c=11 << 20), residual):
        kernels.prepare(LaunchSequence((product,)), H100).bind(9 << 20, 0)
    kernels._modules.compiler = None  # and so there are no kernels of ours
    plain, added = kernels.list_alternatives(2)
    assert plain.records == (b"", bytes([1]) * 64, bytes([2]) * 64)
    assert [launch(5)[0] for launch in plain.launches] == ["cublas", 1, 2]
    assert added.records == (bytes([1]) * 64, bytes([2]) * 64)  # cuBLAS itself cannot add
    assert [launch(5)[0] for launch in added.launches] == [1, 2]
    assert (plain.gpu, plain.library, plain.device) == ("an H100", LIBRARY, 1)
    assert (plain.name, added.name) == (name_product(PRODUCT), name_product(residual))


COMPILER = "triton 3.9.0"
TILE = "128x128x64 w8 s4"
WIDE = replace(PRODUCT, m=512, n=256, k=128, lda=128, ldb=128, ldc=512)


class Compiled:
    """Modules that compile whatever they are asked for, and record what is launched."""

    compiler = COMPILER

    def __init__(self, *, fails=False):
        self.driver, self.fails, self.built, self.ran = Drivers(), fails, [], []

    def binary(self, source, architecture):
        self.built.append(source)
        if self.fails:
            raise KernelFault("Triton could not compile it")
        return KernelBinary(source.name, b"", 4, 0, COMPILER)

    def launch(self, call, binary, memory, status, target, scratch=0):
        def run(stream):
            self.ran.append(call.source.name)
            return "own", call, stream

        return run


def kernels_of(modules, *tunings):
    kernels = CudaKernels([], Drivers(), Products(), Library(), tunings)
    kernels._modules = modules
    kernels._own_kernels = OwnProducts(modules)
    return kernels


def chosen(name, algorithm):
    return Tuning(H100.name, LIBRARY, {name: TunedProduct(algorithm, 1.0, 2.0)})


def test_our_own_kernel_computes_a_product_only_where_a_measurement_has_chosen_it():
    own = chosen(name_product(WIDE), f"{TILE}, {COMPILER}")
    kernels = kernels_of(Compiled(), own)
    kernel = kernels.prepare(LaunchSequence((WIDE,)), H100)
    what, call, _ = kernel.bind(9 << 20, 0)(5)
    assert what == "own"
    assert call.arguments == (WIDE.a, WIDE.b, WIDE.c)
    assert f"tiles {TILE}" in call.source.text
    assert (kernel.description.provider, kernel.workspace) == ("triton", 0)
    assert not kernels.notes
    for other in (
        kernels_of(Compiled()),
        kernels_of(Compiled(), chosen(name_product(WIDE), b"")),
        kernels_of(Compiled(), chosen(name_product(PRODUCT), f"{TILE}, {COMPILER}")),
    ):
        assert other.prepare(LaunchSequence((WIDE,)), H100).bind(9 << 20, 0)(5)[0] == "cublas"
        assert not other._modules.built


@pytest.mark.parametrize(
    ("record", "fails"),
    [
        (f"{TILE}, triton 3.6.0", False),
        (f"16x16x16 w4 s3, {COMPILER}", False),
        (TILE, False),
        ("nothing", False),
        (f"{TILE}, {COMPILER}", True),
    ],
)
def test_a_kernel_that_cannot_be_used_here_is_told_once(record, fails):
    kernels = kernels_of(Compiled(fails=fails), chosen(name_product(WIDE), record))
    for _ in range(2):
        assert kernels.prepare(LaunchSequence((WIDE,)), H100).bind(9 << 20, 0)(5)[0] == "cublas"
    assert len(kernels.notes) == 1
    assert "tune it again" in kernels.notes[0]


def invocations():
    """Gate, up and silu(gate) * up of 64 tokens, at addresses that nobody reads."""

    def array(at, *shape):
        return GpuArray(at << 20, shape, (2 * shape[1], 2), "f16", H100.device)

    def made(name, attributes, inputs, output):
        blocks = [Block((0, 0), x.shape) for x in (*inputs, output)]
        return Invocation(name, attributes, inputs, [output], blocks[:-1], blocks[-1:])

    x, gate, up, f = array(16, 64, 256), array(17, 64, 512), array(18, 64, 512), array(19, 64, 512)
    contract = {"equation": "t k, f k -> t f"}
    first = made("contract", contract, [x, array(20, 512, 256)], gate)
    second = made("contract", contract, [x, array(21, 512, 256)], up)
    program = {"program": "t0 = silu x0; t1 = mul t0 x1", "indices": "t f, t f -> t f"}
    return first, second, made("map", program, [gate, up], f)


def test_three_tasks_become_one_kernel_only_where_a_measurement_has_chosen_it():
    given = invocations()
    plain = kernels_of(Compiled())
    assert plain.prepare_gated_pair(GatedInvocations(*given, (0, 1)), H100) is None
    ((name, device),) = plain._gated
    assert device == H100.device
    own = kernels_of(Compiled(), chosen(name, f"64x64x64 w4 s4, {COMPILER}"))
    _, call, _ = own.prepare_gated_pair(GatedInvocations(*given, (0, 1)), H100).bind(0, 0)(5)
    assert set(call.arguments) == {16 << 20, 19 << 20, 20 << 20, 21 << 20}
    assert "silu" in call.source.text
    for record in (b"", f"64x64x64 w4 s4, {COMPILER}x"):
        usual = kernels_of(Compiled(), chosen(name, record))
        assert usual.prepare_gated_pair(GatedInvocations(*given, (0, 1)), H100) is None


def test_our_own_kernels_are_alternatives_behind_those_of_the_library():
    modules = Compiled()
    kernels, given = kernels_of(modules), invocations()
    kernels.prepare_gated_pair(GatedInvocations(*given, (0, 1)), H100)
    kernels.prepare_batched_pair(*given[:2], H100).bind(9 << 20, 0)
    before = len(modules.built)
    product, gated = kernels.list_alternatives(2)
    assert product.records[:3] == (b"", bytes([1]) * 64, bytes([2]) * 64)
    assert f"64x64x64 w4 s4, {COMPILER}" in product.records
    assert len(modules.built) == before + 1  # nothing of ours is compiled before it is timed; the map is not ours
    product.launches[-1](5)
    assert modules.ran[-1].startswith("product_")
    assert product.result == ResultBytes(17 << 20, (1 << 19) + 64 * 512, "f16")
    assert gated.records[0] == b""
    assert gated.result.pointer == 19 << 20
    assert gated.parts == (product.name,)
    assert " 2 of 512x64x256" in product.name
    gated.launches[0](5)
    assert modules.ran[-1].startswith("map_")
    gated.launches[1](5)
    assert modules.ran[-1].startswith("gated_product_")
    modules.compiler = None  # no compiler, and so no kernels of ours to try
    assert [len(own.records) for own in kernels.list_alternatives(2)] == [3]
