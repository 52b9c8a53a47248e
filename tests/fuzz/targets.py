"""What is fuzzed: for every reader of files from others, valid files to start from, a mutation, and how it is read."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np

from einc_runtime.errors import ReportedError
from einc_runtime.plan.schema import Tensor
from tests.fuzz import imported_models
from tests.fuzz.mutation import mutate_bytes, mutate_text, mutate_tree

ROOT = Path(__file__).parents[2]
Mutation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """A reader of files. `seeds` are files that it accepts, and `read` reads one as a command would."""

    name: str
    seeds: Callable[[], list[bytes]]
    mutate: Mutation
    read: Callable[[bytes], object]


class BrokenContract(AssertionError):
    """An input was neither accepted nor refused with an error that a user can correct."""


def accepts(target: Target, data: bytes) -> bool:
    """Whether an input is accepted. Raises BrokenContract for any other end than the two that there may be."""
    try:
        target.read(data)
    except ReportedError as error:
        if error.exit_code == 70 or not error.render().strip():
            raise BrokenContract(f"{target.name}: {type(error).__name__} is reported as a bug: {error}") from error
        return False
    except Exception as error:
        raise BrokenContract(f"{target.name}: {type(error).__name__}: {error}") from error
    return True


# Plans. An input is the payload: the header with its checksum is made anew, as anybody can.


def _seed_plans() -> list[bytes]:
    from einc_runtime.plan.codec import HEADER, encode
    from tests.support.handmade_plans import random_plan, two_site_plan

    plans = [two_site_plan()]
    plans += [random_plan(seed, sites=2 + seed % 2, operations=1 + seed % 2, reuse=seed % 3 == 0) for seed in range(6)]
    return [encode(plan)[HEADER.size :] for plan in plans]


def _read_plan(payload: bytes) -> object:
    from einc_runtime.plan.codec import HEADER, decode, encode, seal

    bundle = decode(seal(payload))
    assert encode(bundle)[HEADER.size :] == payload, "a plan has another encoding"
    return bundle


def _prove_plan(payload: bytes) -> None:
    from einc_runtime.execution.proved_plans import prove
    from einc_runtime.plan.codec import decode, seal

    prove(decode(seal(payload)))


@cache
def _unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def _mutate_plan(payload: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    if rng.random() < 0.02:
        return mutate_bytes(payload, rng, donors)
    try:
        tree = msgpack.unpackb(payload, strict_map_key=False)
        mutate_tree(tree, rng, [_unpack(donor) for donor in rng.sample(donors, min(len(donors), 1))])
        return msgpack.packb(tree)  # type: ignore[no-any-return]
    except (ValueError, OverflowError, TypeError, msgpack.exceptions.UnpackException):
        return mutate_bytes(payload, rng, donors)


def _seed_plan_files() -> list[bytes]:
    from einc_runtime.plan.codec import seal

    return [seal(payload) for payload in _seed_plans()[:2]]


def _read_plan_file(data: bytes) -> object:
    from einc_runtime.plan.codec import _read_stream

    return _read_stream(io.BytesIO(data))


# Reports. An input is the section of a plan file that the runtime does not read.


def _seed_reports() -> list[bytes]:
    from einc.plan_report import BaselineTime, Contender, MemoryPoint, PlanReport, encode_report

    complete = PlanReport(
        True, 7, 1 << 30, 0.5, (BaselineTime("a"), BaselineTime("b", 1.0, 2, "slower")),
        (Contender("c", True, 1.0, 2, 3, "the fastest", True, 0.5),), (MemoryPoint(1, 2.0), MemoryPoint(3, 1.5)),
    )  # fmt: skip
    return [encode_report(report) for report in (complete, PlanReport())]


def _mutate_report(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Most mutations change the records alone, and leave the version."""
    return data[:4] + _mutate_plan(data[4:], rng, [donor[4:] for donor in donors])


def _read_report(data: bytes) -> None:
    from einc.plan_report import UNKNOWN_REPORT, encode_report, read_report
    from tests.support.handmade_plans import two_site_plan

    report = read_report(msgspec.structs.replace(two_site_plan(), report=data))
    assert report is UNKNOWN_REPORT or encode_report(report) == data, "a report has another encoding"


# Arrays.

TENSORS = tuple(
    Tensor(name, tuple("ij"[: len(shape)]), shape, dtype, "weight")
    for name, shape, dtype in (("a", (3, 2), "f32"), ("b", (5,), "bf16"), ("c", (), "i64"), ("d", (2, 0, 3), "bool"))
)  # fmt: skip


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.standard_normal((3, 2)).astype("f4"),
        "b": np.arange(5, dtype="f4"),
        "c": np.array(7, "i8"),
        "d": np.zeros((2, 0, 3), "?"),
    }


def _seed_npy() -> list[bytes]:
    texts = []
    for array in (*_arrays().values(), np.asfortranarray(_arrays()["a"]), _arrays()["a"].astype(">f4")):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, array)
        texts.append(stream.getvalue())
    return texts


def _read_npy(data: bytes) -> None:
    from einc_runtime.errors import ArrayFault
    from einc_runtime.execution.data.npy import NpyFile

    faults = []
    for tensor in TENSORS:
        try:
            assert NpyFile(io.BytesIO(data), "x.npy", len(data)).read(tensor).shape == tensor.shape
        except ArrayFault as fault:
            faults.append(fault)
    if len(faults) == len(TENSORS):
        raise faults[0]


def _seed_npz() -> list[bytes]:
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, **_arrays())
    np.savez_compressed(packed, **_arrays())
    return [plain.getvalue(), packed.getvalue()]


def _seed_safetensors() -> list[bytes]:
    entries, data = {}, b""
    for name, array in _arrays().items():
        kind = {"a": "F32", "b": "BF16", "c": "I64", "d": "BOOL"}[name]
        raw = (array.view("u4") >> 16).astype("u2").tobytes() if name == "b" else array.tobytes()
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return [_join_safetensors(header, data) for header in (entries, {"__metadata__": {"format": "pt"}, **entries})]


def _join_safetensors(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + data


def _mutate_safetensors(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Most mutations change the header alone, and say its length correctly."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng, donors)
    if rng.random() < 0.2 or not isinstance(header, dict):
        return mutate_bytes(data, rng, donors)
    mutate_tree(header, rng, ())
    return _join_safetensors(header, data[8 + length :])


def _read_weights(data: bytes) -> None:
    from einc_runtime.execution.data.weights import iterate_weights

    with imported_models.file_of(data) as path:
        for _, array in iterate_weights(TENSORS, path):
            array.sum()


# Texts.


def _mutate_text_bytes(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    if rng.random() < 0.05:
        return mutate_bytes(data, rng, donors)
    texts = [donor.decode("utf-8", "replace") for donor in rng.sample(donors, min(len(donors), 1))]
    return mutate_text(data.decode("utf-8", "replace"), rng, texts).encode("utf-8", "replace")


def _mutate_json(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _mutate_text_bytes(data, rng, donors)
    if rng.random() < 0.2 or not isinstance(tree, list | dict):
        return _mutate_text_bytes(data, rng, donors)
    files = []
    for donor in rng.sample(donors, min(len(donors), 1)):
        with contextlib.suppress(ValueError, RecursionError):
            files.append(json.loads(donor))
    mutate_tree(tree, rng, files)
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _seed_machines() -> list[bytes]:
    presets = sorted((ROOT / "einc/machines/presets").glob("*.json"))
    small = {"name": "m", "sites": [{"hbm_gbs": 9.0, "memory_bytes": 4096, "flops": {"f32": 1e12}}] * 3,
             "resources": [{"name": "l", "gbs": 2.5, "pairs": [[0, 1], [1, 0], [1, 2], [2, 1]]}],
             "latency_us": {"transfer": 1.0, "kernel": 2.0}}  # fmt: skip
    return [json.dumps(small).encode(), *(path.read_bytes() for path in presets if path.stem != "host")]


def _read_machine(data: bytes) -> None:
    from einc.machines.load import format_machine, load_machine, parse_machine

    with imported_models.file_of(data) as path:
        machine = load_machine(path)
    assert parse_machine(format_machine(machine)) == machine


def _seed_programs() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "models/exchanges").glob("*.exprog"))]


def _read_program(data: bytes) -> None:
    from einc.exchange.language.checker import check
    from einc.exchange.language.resolve import read_program
    from einc.exchange.simulation.simulator import simulate
    from einc.machines.load import load_machine

    machine = load_machine("dgx-a100")
    program = read_program(data.decode("utf-8", "replace"), "x.exprog", machine)
    if check(program, machine).valid:
        simulate(program, machine)


def _seed_algorithms() -> list[bytes]:
    from tests.support import collective_cases as cases

    algorithms = [cases.ring_allreduce(3), cases.ring_allgather(3, 2), cases.all_pairs_reduce_scatter(2)]
    algorithms += [cases.tree_allreduce(4), cases.chain_broadcast(3), cases.direct_alltoall(2, 2)]
    return [sketch.text().encode() for sketch in algorithms]


def _seed_execution_plans() -> list[bytes]:
    from tests.support import published_bugs as plans

    texts = [plans.make_plan(plans.put_allgather()), plans.make_plan(plans.read_allreduce(), kind="allreduce"),
             plans.make_plan(plans.staged(True), scratch=1)]  # fmt: skip
    return [text.encode() for text in texts]


def _read_algorithm(data: bytes) -> None:
    from einc.exchange.collectives.msccl_xml import read_msccl_xml
    from einc.exchange.collectives.translating import convert_algorithm
    from einc.exchange.language.checker import check

    assert check(convert_algorithm(read_msccl_xml(data.decode("utf-8", "replace"), "x.xml"))).valid


def _read_execution_plan(data: bytes) -> None:
    from einc.exchange.collectives.mscclpp_json import read_mscclpp_json
    from einc.exchange.collectives.translating import convert_algorithm
    from einc.exchange.language.checker import check

    assert check(convert_algorithm(read_mscclpp_json(data.decode("utf-8", "replace"), "x.json"))).valid


def _seed_contracts() -> list[bytes]:
    return [
        b"predicted_ms <= 0.3\ncomm_bytes < 300MiB  # a comment\nbound_ratio<=1.1",
        b"cut(layer.*.up) == d_ff/8\ncut([a-c]?) != heads/2, keys/4,...\nmemory >= 2.5e3 GB",
    ]


def _read_contracts(data: bytes) -> None:
    from einc.report.contract_text import parse_contract_file

    parse_contract_file(data.decode("utf-8", "replace"), "x.txt")


def _seed_models() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "models").glob("*.ein"))]


def _read_model(data: bytes) -> None:
    from einc.frontend import build
    from einc.graph.graph import verify_graph

    verify_graph(build(data.decode("utf-8", "replace"), "x.ein"))


def _seed_configurations() -> list[bytes]:
    from tests.support import import_configs as configs

    names = ("LLAMA", "QWEN3", "PHI3", "GEMMA", "MIXTRAL", "QWEN3_MOE", "GEMMA3", "GEMMA2", "OLMO2", "BERT", "MISTRAL")
    return [json.dumps(getattr(configs, name)).encode() for name in names]


def _read_configuration(data: bytes) -> None:
    from einc.frontend import build
    from einc.importers.common import ImportRequest
    from einc.importers.hf import import_hf

    text = import_hf(data, "config.json", "m", ImportRequest(), None).text
    if len(text) < 20_000:  # larger ones only take longer
        build(text, "m.ein")


TARGETS = {
    target.name: target
    for target in (
        Target("plan", _seed_plans, _mutate_plan, _read_plan),
        Target("plan-file", _seed_plan_files, mutate_bytes, _read_plan_file),
        Target("proof", _seed_plans, _mutate_plan, _prove_plan),
        Target("report", _seed_reports, _mutate_report, _read_report),
        Target("npy", _seed_npy, mutate_bytes, _read_npy),
        Target("npz", _seed_npz, mutate_bytes, _read_weights),
        Target("safetensors", _seed_safetensors, _mutate_safetensors, _read_weights),
        Target("machine", _seed_machines, _mutate_json, _read_machine),
        Target("exchange", _seed_programs, _mutate_text_bytes, _read_program),
        Target("msccl", _seed_algorithms, _mutate_text_bytes, _read_algorithm),
        Target("mscclpp", _seed_execution_plans, _mutate_json, _read_execution_plan),
        Target("contract", _seed_contracts, _mutate_text_bytes, _read_contracts),
        Target("model", _seed_models, _mutate_text_bytes, _read_model),
        Target("configuration", _seed_configurations, _mutate_json, _read_configuration),
        Target("gguf", imported_models.seed_gguf, imported_models.mutate_gguf, imported_models.read_gguf),
        Target("onnx", imported_models.seed_onnx, imported_models.mutate_onnx, imported_models.read_onnx_model),
        Target("pt2", imported_models.seed_pt2, imported_models.mutate_pt2, imported_models.read_pt2),
    )
}
