"""Primitives that are probed alone: on the fake driver, in processes that die, and what follows from a broken one."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.kernels.cuda import cublas, cublaslt
from einc_runtime.kernels.cuda import modules as cuda_modules
from einc_runtime.kernels.triton import product
from tests.gpu import check as gpu_check
from tests.gpu import primitives, probe_worker, probes_copies, worker
from tests.gpu.cases import CASES
from tests.gpu.correctness import Result, compiled
from tests.gpu.findings import Findings
from tests.gpu.layouts import Layout
from tests.gpu.needs import needed_by
from tests.gpu.places import CPU
from tests.gpu.probe_bench import Bench, Broken
from tests.gpu.probing import broken, count_gpus, probe_all, without_libraries
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.emulated_gemm import multiply


def bench_on(driver=None):
    driver = driver or FakeDriver(1)
    return Bench(driver, NumpyKernels(driver))


@pytest.mark.parametrize("name", probe_worker.COPIES)
@pytest.mark.parametrize("gpus", [1, 2])
def test_probes_of_copies_hold_on_the_fake_driver(name, gpus):
    found = probe_worker.probe(name, replace(CPU, gpus=gpus))
    assert found["status"] == "ok", found
    assert found["probe"] == name
    assert ("GPU 0 to 1" in found["detail"]) == (name == primitives.PEERS and gpus == 2)


def test_every_primitive_has_a_probe_and_none_of_a_gpu_passes_without_one():
    assert {*probe_worker.COPIES, *probe_worker.LIBRARIES, primitives.DEVICES} == set(primitives.TOLD)
    for name in probe_worker.LIBRARIES:
        assert probe_worker.probe(name, CPU)["status"] == "absent"
    assert probe_worker.probe(primitives.DEVICES, CPU)["gpus"] == 2


class Spoiled(FakeDriver):
    """Copies lose their last byte."""

    def copy_async(self, target, target_pitch, source, source_pitch, width, height, stream):
        super().copy_async(target, target_pitch, source, source_pitch, width - 1, height, stream)


@pytest.mark.parametrize("name", list(probe_worker.COPIES))
def test_a_copy_that_loses_a_byte_is_broken(name):
    with pytest.raises(Broken, match="computes something else"):
        probe_worker.COPIES[name](bench_on(Spoiled(1)), 4096)


class EmulatedProducts:
    """cuBLAS and cuBLASLt on the host's memory; `wrong` leaves the epilogue out."""

    wrong, driver = False, None

    def __init__(self, use):
        self.use = use

    def version(self, device):
        return "13.0"

    def fits(self, product, device):
        return True

    def launch(self, product, *where):
        own = replace(product, addend=0, activation="") if self.wrong else product
        return lambda stream: self.driver.kernel(stream, "product", lambda: multiply(own))


def test_probes_of_products_compare_with_numpy(monkeypatch):
    driver = FakeDriver(1)
    monkeypatch.setattr(EmulatedProducts, "driver", driver)
    monkeypatch.setattr(cublas, "Cublas", EmulatedProducts)
    monkeypatch.setattr(cublaslt, "CublasLt", EmulatedProducts)
    bench = bench_on(driver)
    assert "13.0" in probe_worker.LIBRARIES[primitives.CUBLAS](bench)
    assert "us" in probe_worker.LIBRARIES[primitives.EPILOGUE](bench)
    monkeypatch.setattr(EmulatedProducts, "wrong", True)
    assert "13.0" in probe_worker.LIBRARIES[primitives.CUBLAS](bench)
    with pytest.raises(Broken, match="computes something else"):
        probe_worker.LIBRARIES[primitives.EPILOGUE](bench)


class OwnCall:
    """A launch of our own kernel, as the products that it computes."""

    source = None

    def __init__(self, products):
        self.products = products


class OwnModules:
    """Computes what our own kernels do, on the host's memory; `wrong` leaves the second product out."""

    wrong, driver = False, None

    def __init__(self, places, modules):
        pass

    def binary(self, source, architecture):
        return None

    def launch(self, call, *_):
        def run():
            multiply(call.products[0])
            if len(call.products) == 1 or self.wrong:
                return
            one, count = call.products[0], call.products[0].m * call.products[0].n
            result = np.frombuffer((ctypes.c_uint8 * (2 * count)).from_address(one.c), np.float16)
            first = result.astype("f8")
            multiply(call.products[1])
            result[:] = first / (1 + np.exp(-first)) * result

        return lambda stream: self.driver.kernel(stream, "own", run)


def test_the_probe_of_our_own_products_compares_with_numpy(monkeypatch):
    driver = FakeDriver(1)
    monkeypatch.setattr(OwnModules, "driver", driver)
    monkeypatch.setattr(cuda_modules, "LoadedModules", OwnModules)
    monkeypatch.setattr(cuda_modules, "CupyModules", lambda: None)
    monkeypatch.setattr(product, "build_product", lambda own, tile, count: OwnCall([own]))
    monkeypatch.setattr(product, "build_gated_product", lambda own, program, tile, count: OwnCall(own))
    told = probe_worker.LIBRARIES[primitives.PRODUCTS](bench_on(driver))
    assert len(re.findall(r"\d+x\d+x\d+ w\d s\d [0-9.]+ us", told)) == 2
    monkeypatch.setattr(OwnModules, "wrong", True)
    with pytest.raises(Broken, match="computes something else"):
        probe_worker.LIBRARIES[primitives.PRODUCTS](bench_on(driver))


def test_an_error_of_the_driver_is_told(monkeypatch):
    def fail(*_):
        raise DriverError("streamBeginCapture", 901, "no capture here")

    monkeypatch.setattr(FakeDriver, "begin_capture", fail)
    found = probe_worker.probe(primitives.CAPTURE, CPU)
    assert found["status"] == "failed"
    assert "DriverError: streamBeginCapture: no capture here" in found["detail"]


def test_the_width_of_rows_from_which_a_copy_is_worth_it():
    least = probes_copies.least_width
    assert least({64: (5.0, 900.0), 128: (10.0, 900.0), 256: (850.0, 900.0), 512: (2000.0, 1500.0)}) == "256"
    assert least({64: (900.0, 900.0), 128: (10.0, 900.0), 256: (900.0, 900.0)}) == "256"  # whatever is below
    assert least({64: (1.0, 2.0), 128: (1.0, 2.0)}) == "above 128"


def test_links_between_all_pairs_are_measured_both_ways():
    driver = FakeDriver(3, unreachable={(1, 2)})
    benches = [Bench(driver, NumpyKernels(driver), device) for device in range(3)]
    found = probes_copies.links(benches, (64, 4096))
    assert [(own["from"], own["to"], own.get("bytes")) for own in found] == [
        (0, 1, 64), (0, 1, 4096), (0, 2, 64), (0, 2, 4096), (1, 2, None),
    ]  # fmt: skip
    assert all(min(own["there"], own["back"], own["both"]) > 0 for own in found if "bytes" in own)
    assert driver.leaks().get("memory") is None


class ProbeWorker:
    """Answers as `answers` says: a status, None for a process that dies, or TimeoutError."""

    def __init__(self, answers, started, name):
        self.answers, self.name = answers, name
        started.append(name)

    def record(self, seconds):
        answer = self.answers.get(self.name, "ok")
        if answer is TimeoutError:
            raise TimeoutError
        extra = {"gpus": 3} if self.name == primitives.DEVICES else {}
        return None if answer is None else {"probe": self.name, "status": answer, "detail": "why", **extra}

    def end(self, patience=None):
        return (-11, "Segmentation fault") if self.answers.get(self.name, "ok") is None else (0, "")


def probed(seconds=100.0, **answers):
    findings, started = Findings(), []
    known = {name.replace("-", "_"): name for name in primitives.TOLD}
    answers = {known[name]: answer for name, answer in answers.items()}
    probe_all(findings, lambda: None, lambda what, name: ProbeWorker(answers, started, name), seconds)
    assert [own["probe"] for own in findings.probes] == list(primitives.TOLD)
    return findings, started


def test_a_probe_that_dies_costs_one_line_and_one_without_answer_is_no_fault():
    findings, started = probed(cublas=None, pinned=TimeoutError, cudnn="failed")
    assert set(started) == set(primitives.TOLD)
    assert started[-3:] == list(primitives.TIMED)
    assert broken(findings.probes) == {"cublas": "exit code -11, Segmentation fault", "cudnn": "why"}
    assert {own["probe"]: own["status"] for own in findings.probes}["pinned"] == "unknown"
    assert count_gpus(findings.probes) == 3
    assert count_gpus([]) == 1
    late, started = probed(seconds=-1.0)
    assert not started
    assert {own["status"] for own in late.probes} == {"unknown"}


def test_libraries_compute_no_attention_where_none_can(monkeypatch):
    absent = {"flash_attn": "absent", "flash_attn_3": "absent", "flash_attn_4": "absent", "cudnn_frontend": "absent"}
    assert not without_libraries(probed(cudnn="failed", **absent)[0].probes)  # PyTorch's flash-attn can
    assert not without_libraries(probed(cudnn="absent", flash="absent", **absent)[0].probes)
    assert "cudnn: why; flash: why" in without_libraries(probed(cudnn="failed", flash="failed", **absent)[0].probes)
    findings = probed(pools=None)[0]
    monkeypatch.delenv("EINC_ATTENTION", raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    gpu_check.avoid_libraries(findings)
    assert os.environ["EINC_ATTENTION"] == "einc"
    assert "memory pools" in findings.own_attention


def case_of(name, dtype):
    return next(case for case in CASES if (case.name, case.dtype) == (name, dtype) and not case.slow)


def test_what_plans_need():
    chain, block, rows = case_of("chain_a", "f32"), case_of("llama_block", "f32"), case_of("rows", "f32")
    assert needed_by(compiled(chain, 1, "f32"), Layout.ONE) == {"capture", "cublas"}
    assert {"triton", "shared", "cublas", "epilogue"} <= needed_by(compiled(block, 1, "f32"), Layout.ONE)
    assert "pinned" in needed_by(compiled(rows, 1, "f32"), Layout.ONE)
    several = compiled(chain, 4, "f32")
    assert {"rows", "peers"} <= needed_by(several, Layout.ALIASED)
    assert "pinned" in needed_by(several, Layout.STAGED)
    assert "rows" not in needed_by(several, Layout.ONE)


def test_cases_that_need_a_broken_primitive_are_not_run(monkeypatch):
    monkeypatch.setattr(worker, "reference", lambda *_: {})
    monkeypatch.setattr(worker, "check", lambda case, sites, *_: Result(case.title, sites, error=0.0))
    place = replace(CPU, broken=frozenset({"cublas"}))
    at = {run.title: position for position, run in reversed(list(enumerate(place.runs())))}
    first = at["merges f32 on 8 sites"]
    _, found = worker.correctness(place, first, first + 1)
    assert found["error"] == 0.0
    assert not found["unchecked"]
    position = at["chain_a odd f32 on 8 sites, each on a GPU of its own that this one plays"]
    _, found = worker.correctness(place, position, position + 1)
    assert found["unchecked"] == "needs what is broken: cuBLAS, captured"
    assert found["error"] is None
    assert found["layout"] == "aliased"


@pytest.mark.parametrize("works", [True, False])
def test_the_first_case_that_needs_it_is_run_all_the_same(works, monkeypatch):
    """A probe may be wrong, which must not cost all cases."""
    ran = []

    def checked(case, sites, *_):
        ran.append(case.title)
        return Result(case.title, sites, error=0.0 if works else 9.0, same_bits=True)

    monkeypatch.setattr(worker, "reference", lambda *_: {})
    monkeypatch.setattr(worker, "arrays_of", lambda *_: {})
    monkeypatch.setattr(worker, "compiled", lambda *_: None)
    monkeypatch.setattr(worker, "needed_by", lambda *_: frozenset({"capture", "cublas"}))
    monkeypatch.setattr(worker, "check", checked)
    place = replace(CPU, broken=frozenset({"capture", "rows"}))
    found = [own for own in worker.correctness(place, 0, 3) if "start" not in own]
    assert len(ran) == (3 if works else 1)
    assert [bool(own["unchecked"]) for own in found] == [False, not works, not works]
    assert ("though a probe failed: a graph captured" in " ".join(found[0]["notes"])) == works
    assert list(worker.correctness(place, 1, 2))[1]["unchecked"]  # after a worker that was lost


def test_what_is_pinned_can_be_written_by_numpy():
    bench = bench_on()
    pointer = bench.driver.allocate_host(8)
    probes_copies.host_bytes(pointer, 8)[:] = np.arange(8)
    assert probes_copies.host_bytes(pointer, 8).tolist() == list(range(8))
