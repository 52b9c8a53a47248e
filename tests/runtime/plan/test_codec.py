"""The bytes of a plan: one canonical form, and no other bytes are taken for a plan."""

import contextlib
import hashlib
import io
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.errors import PlanFault
from einc_runtime.plan import codec as wire
from einc_runtime.plan.codec import HEADER, MAGIC, MAX_PAYLOAD_BYTES, decode, encode, hash_payload, read_bundle, seal
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import SCHEMA_VERSION, Bundle, Exchange
from tests.support.handmade_plans import random_plan, two_site_plan
from tests.support.property_examples import examples

GOLDEN = Path(__file__).parent / "golden_plan.v16"
PLAN = two_site_plan()
DATA = encode(PLAN)


def payload_of(data: bytes) -> bytes:
    return data[HEADER.size :]


def fault_of(data: bytes) -> PlanFault:
    with pytest.raises(PlanFault) as caught:
        decode(data)
    assert "\x1b" not in caught.value.render()
    return caught.value


def harmless(data: bytes) -> bool:
    """Whether the bytes are a plan; if not, they must be refused in the one way there is."""
    try:
        bundle = decode(data)
    except PlanFault:
        return False
    assert encode(bundle) == data
    with contextlib.suppress(PlanFault):
        prove(bundle)
    return True


def test_the_hash_of_a_plan_is_that_in_its_header():
    assert wire.hash_payload(PLAN) == HEADER.unpack(DATA[: HEADER.size])[3] == hashlib.sha256(payload_of(DATA)).digest()


def test_a_plan_survives_the_wire():
    assert decode(DATA) == PLAN
    assert encode(decode(DATA)) == DATA


@examples(40)
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 7), operations=st.integers(1, 4), reuse=st.booleans())
def test_random_plans_survive_the_wire_and_both_writers_agree(seed, sites, operations, reuse):
    plan = random_plan(seed, sites, operations, reuse)
    data = encode(plan)
    assert decode(data) == plan
    assert msgpack.packb(wire.to_builtins(plan)) == payload_of(data)


@examples(200)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=40) | st.just("é" * 70_000),
        max_size=20,
    )
)
def test_both_writers_agree_on_every_attribute(attributes):
    operation = msgspec.structs.replace(PLAN.operations[0], attributes=attributes)
    plan = msgspec.structs.replace(PLAN, operations=(operation,))
    written = msgpack.packb(wire.to_builtins(plan))
    assert msgspec.msgpack.Encoder(order="deterministic").encode(plan) == written


def test_the_order_of_attributes_does_not_show():
    def plan(attributes):
        operations = (msgspec.structs.replace(PLAN.operations[0], attributes=attributes), *PLAN.operations[1:])
        return msgspec.structs.replace(PLAN, operations=operations)

    assert encode(plan({"b": 1, "a": 2})) == encode(plan({"a": 2, "b": 1}))


def test_an_independent_reader_sees_the_documented_layout():
    assert DATA[:8] == b"\x89EINC\r\n\x1a"
    assert struct.unpack(">I", DATA[8:12]) == (SCHEMA_VERSION,) == (16,)
    assert struct.unpack(">Q", DATA[12:20]) == (len(DATA) - 52,)
    assert DATA[20:52] == hashlib.sha256(DATA[52:]).digest()
    plan = msgpack.unpackb(DATA[52:])
    assert list(plan) == list(Bundle.__struct_fields__)
    assert plan["tensors"][0] == {
        "name": "x", "dims": ["i", "j"], "shape": [4, 3], "dtype": "f32", "kind": "input",
    }  # fmt: skip
    task = plan["tasks"][2]
    assert list(task) == ["kind", "site", "serves", "after", "read", "write"]
    assert task["kind"] == "transfer"
    assert task["read"] == [2, [[0, 0], [2, 2]]]


def test_any_report_is_carried_and_not_read():
    for report in (b"", b"\0\0\0\x01", b"\xff" * 100, bytes(1 << 20)):
        plan = msgspec.structs.replace(PLAN, report=report)
        assert decode(encode(plan)) == plan
        prove(plan)
    with pytest.raises(PlanFault, match="the report of a plan has at most"):
        encode(msgspec.structs.replace(PLAN, report=bytes((1 << 20) + 1)))


def test_the_golden_plan_is_read_and_written_as_ever():
    """A change that breaks this test needs a new schema version (`runtime/README.md`)."""
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_bytes(DATA)
    assert decode(GOLDEN.read_bytes()) == PLAN
    assert GOLDEN.read_bytes() == DATA


def test_every_truncation_is_refused():
    for length in range(len(DATA)):
        assert "truncated" in fault_of(DATA[:length]).message or length == 0
    for length in range(len(payload_of(DATA))):
        fault_of(seal(payload_of(DATA)[:length]))


def test_anything_after_the_plan_is_refused():
    assert fault_of(DATA + b"\0").message == f"more bytes follow the {len(DATA) - 52} that the plan announces"
    fault_of(seal(payload_of(DATA) + b"\0"))


def test_every_flipped_bit_is_found():
    damaged = bytearray(DATA)
    for position in range(len(damaged)):
        for bit in range(8):
            damaged[position] ^= 1 << bit
            with pytest.raises(PlanFault):
                decode(bytes(damaged))
            damaged[position] ^= 1 << bit


def flip_payload(start: int, step: int) -> int:
    """Flips every `step`-th bit with the checksum made to hold; returns how many results are plans."""
    plans = 0
    payload = bytearray(payload_of(DATA))
    for bit in range(start, 8 * len(payload), step):
        payload[bit >> 3] ^= 1 << (bit & 7)
        plans += harmless(seal(bytes(payload)))
        payload[bit >> 3] ^= 1 << (bit & 7)
    return plans


def test_flipped_bits_under_a_right_checksum_do_no_harm():
    assert flip_payload(start=3, step=13) > 0  # some flips only change a name


@pytest.mark.slow
def test_all_flipped_bits_under_a_right_checksum_do_no_harm():
    assert flip_payload(start=0, step=1) > 0


@examples(150)
@given(data=st.data())
def test_rewritten_bytes_under_a_right_checksum_do_no_harm(data):
    payload = bytearray(payload_of(DATA))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=5))
    harmless(seal(bytes(payload)))


@examples(150)
@given(st.binary(max_size=200))
def test_random_bytes_are_no_plan(data):
    fault_of(data)
    fault_of(seal(data))


def test_another_schema_version_is_named():
    for version, advice in ((0, "plan is too old"), (SCHEMA_VERSION + 1, "einc is too old"), (2**32 - 1, "too old")):
        data = MAGIC + struct.pack(">I", version) + DATA[12:]
        fault = fault_of(data)
        assert f"version {version}" in fault.message
        assert f"version {SCHEMA_VERSION}" in fault.message
        assert advice in fault.message
        assert "compile" in fault.hint


def test_other_files_are_no_plans():
    for data in (
        b"",
        b"\n",
        b"model ffn\n",
        b"\x93NUMPY" + bytes(100),
        DATA.replace(b"\r\n", b"\n", 1),
        b"\x89PNG\r\n",
    ):
        assert "not a plan file" in fault_of(data).message


def test_an_announced_size_is_refused_before_it_is_read():
    header = HEADER.pack(MAGIC, SCHEMA_VERSION, MAX_PAYLOAD_BYTES + 1, bytes(32))
    assert str(MAX_PAYLOAD_BYTES) in fault_of(header).message
    huge = HEADER.pack(MAGIC, SCHEMA_VERSION, 2**64 - 1, bytes(32))
    assert str(MAX_PAYLOAD_BYTES) in fault_of(huge + bytes(100)).message


def with_field(**fields: object) -> bytes:
    """The payload with raw MessagePack in place of some of the bundle's fields."""
    plan = msgpack.unpackb(payload_of(DATA))
    parts = [bytes([0x80 | len(plan)]) if len(plan) < 16 else struct.pack(">BH", 0xDE, len(plan))]
    for name, value in plan.items():
        parts.append(msgpack.packb(name))
        raw = fields.get(name)
        parts.append(raw if isinstance(raw, bytes) else msgpack.packb(value))
    return b"".join(parts)


def test_raw_fields_are_spliced_faithfully():
    assert with_field() == payload_of(DATA)


LAST_FIELD = msgpack.packb("report") + msgpack.packb(PLAN.report)
HOSTILE_PAYLOADS = {
    "empty": b"",
    "null": b"\xc0",
    "no map": b"\x01",
    "unassigned opcode": b"\xc1",
    "nested arrays": b"\x91" * 1_000_000,
    "nested maps": b"\x81\xa1a" * 300_000,
    "array of 2^32 - 1": b"\xdd\xff\xff\xff\xff",
    "map of 2^32 - 1": b"\xdf\xff\xff\xff\xff",
    "tasks: 2^32 - 1 of them": with_field(tasks=b"\xdd\xff\xff\xff\xff"),
    "tasks: nested": with_field(tasks=b"\x91" * 100_000),
    "devices: 2^32 - 1 of them": with_field(devices=b"\xdd\xff\xff\xff\xff"),
    "devices: nested": with_field(devices=b"\x91" * 100_000 + b"\x00"),
    "model: string of 2^32 - 1": with_field(model=b"\xdb\xff\xff\xff\xff"),
    "model: bytes that are no UTF-8": with_field(model=b"\xa2\xff\xfe"),
    "model: a surrogate": with_field(model=b"\xa3\xed\xa0\x80"),
    "model: binary": with_field(model=b"\xc4\x01a"),
    "model: extension type": with_field(model=b"\xd4\x01\x00"),
    "model: timestamp": with_field(model=b"\xd6\xff\x00\x00\x00\x00"),
    "model: padded length": with_field(model=b"\xd9\x01m"),
    "total_cost: float": with_field(total_cost=msgpack.packb(6.0)),
    "total_cost: NaN": with_field(total_cost=msgpack.packb(float("nan"))),
    "total_cost: true": with_field(total_cost=b"\xc3"),
    "total_cost: string": with_field(total_cost=b"\xa16"),
    "total_cost: wide six": with_field(total_cost=b"\xcd\x00\x06"),
    "total_cost: signed six": with_field(total_cost=b"\xd0\x06"),
    "total_cost: 2^64 - 1": with_field(total_cost=b"\xcf" + b"\xff" * 8),
    "total_cost: -2^63": with_field(total_cost=b"\xd3\x80" + bytes(7)),
    "total_cost: 2^63": with_field(total_cost=b"\xcf\x80" + bytes(7)),
    "report: text": with_field(report=b"\xa1a"),
    "report: a map": with_field(report=b"\x80"),
    "report: 2^32 - 1 bytes": with_field(report=b"\xc6\xff\xff\xff\xff"),
    "report: padded length": with_field(report=b"\xc5\x00\x00"),
    "report: more than a MiB": with_field(report=msgpack.packb(bytes((1 << 20) + 1))),
    "unknown field": bytes([0xDE, 0, 19]) + payload_of(DATA)[3:] + b"\xa1\x1b\x00",
    "duplicate field": bytes([0xDE, 0, 19]) + payload_of(DATA)[3:] + b"\xa5model\xa1m",
    "missing field": bytes([0xDE, 0, 17]) + payload_of(DATA)[3:].removesuffix(LAST_FIELD),
}  # fmt: skip


@pytest.mark.parametrize("payload", HOSTILE_PAYLOADS.values(), ids=HOSTILE_PAYLOADS.keys())
def test_hostile_payloads_are_refused(payload):
    fault_of(seal(payload))


def reordered(key: str):
    plan = msgpack.unpackb(payload_of(DATA))
    part = plan["tasks"][0] if key == "tasks" else plan
    items = list(part.items())
    part.clear()
    part.update(reversed(items))
    return msgpack.packb(plan)


def test_only_the_canonical_form_is_a_plan():
    bundle = msgspec.msgpack.decode(reordered("tasks"), type=Bundle)
    assert bundle == PLAN  # the types alone would let it pass
    assert "canonical" in fault_of(seal(reordered("tasks"))).message
    assert "canonical" in fault_of(seal(reordered("plan"))).message
    duplicate = payload_of(DATA).replace(b"\x81\xa8equation", b"\x82\xa8equation\xa0\xa8equation", 1)
    assert msgspec.msgpack.decode(duplicate, type=Bundle) == PLAN
    assert "canonical" in fault_of(seal(duplicate)).message


def test_a_refusal_names_the_field():
    plan = msgpack.unpackb(payload_of(DATA))
    plan["tensors"][1]["dtype"] = "f8"
    assert "tensors" in fault_of(seal(msgpack.packb(plan))).message
    plan["tensors"][1] = {"\x1b[31m": 1}
    assert "\\x1b" in fault_of(seal(msgpack.packb(plan))).message


MEMORY_PROBE = """
import resource, sys
from einc_runtime.plan.codec import decode
from einc_runtime.errors import PlanFault
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(sys.stdin.buffer.read())
except PlanFault as fault:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("field", ["tasks", "devices", "machine_file"])
def test_lengths_that_lie_take_no_memory(field):
    lie = b"\xdb\x7f\xff\xff\xff" if field == "machine_file" else b"\xdd\x7f\xff\xff\xff"
    data = seal(with_field(**{field: lie}) + bytes(1 << 20))
    probe = subprocess.run([sys.executable, "-c", MEMORY_PROBE], input=data, capture_output=True, check=True)
    assert int(probe.stdout) < 64 << 10  # KiB


def test_files_pipes_and_standard_input_are_read(tmp_path, monkeypatch):
    path = tmp_path / "plan.bin"
    path.write_bytes(DATA)
    assert read_bundle(path) == PLAN
    assert read_bundle(str(path)) == PLAN

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(DATA,))
    writer.start()
    assert read_bundle(fifo) == PLAN
    writer.join()

    class Input:
        buffer = io.BytesIO(DATA)

    monkeypatch.setattr(sys, "stdin", Input())
    assert read_bundle("-") == PLAN


def test_endless_devices_are_refused_at_once(tmp_path):
    with pytest.raises(PlanFault, match="not a plan file"):
        read_bundle("/dev/zero")
    with pytest.raises(PlanFault, match="not a plan file"):
        read_bundle(os.devnull)
    sparse = tmp_path / "sparse"
    sparse.write_bytes(DATA)
    os.truncate(sparse, 1 << 40)
    with pytest.raises(PlanFault, match="follow"):
        read_bundle(sparse)
    with pytest.raises(OSError, match="No such file"):
        read_bundle(tmp_path / "nothing")
    with pytest.raises(OSError, match="directory"):
        read_bundle(tmp_path)


def test_a_stream_is_read_as_far_as_announced():
    class Endless(io.RawIOBase):
        served = 0

        def read(self, size=-1):
            start = self.served
            self.served += size
            return (DATA + b"\0" * self.served)[start : self.served]

    stream = Endless()
    with pytest.raises(PlanFault, match="follow"):
        wire._read_stream(stream, folded=False)
    assert stream.served == len(DATA) + 1


def test_a_plan_too_large_to_read_is_not_written(monkeypatch):
    monkeypatch.setattr(wire, "MAX_PAYLOAD_BYTES", 100)
    with pytest.raises(PlanFault, match="more than 100"):
        encode(PLAN)


def test_the_runtime_loads_nothing_of_the_compiler():
    imports = "import sys, einc_runtime.plan.codec, einc_runtime.plan.proof"
    code = f"{imports}; print({{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "'msgspec'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("einc", "lark", "grammars", "numpy"))


def test_nor_is_one_with_a_text_that_is_too_long_to_read():
    plan = msgspec.structs.replace(two_site_plan(), machine_file=" " * ((32 << 20) + 1))
    with pytest.raises(PlanFault, match="at most 33554432") as caught:
        encode(plan)
    assert caught.value.where == "machine_file"
    exchange = Exchange(program=" " * ((32 << 20) + 1))
    plan = two_site_plan()
    output = msgspec.structs.replace(plan.outputs[0], exchange=exchange)
    with pytest.raises(PlanFault) as caught:
        encode(msgspec.structs.replace(plan, outputs=(output, *plan.outputs[1:])))
    assert caught.value.where == "outputs[0].exchange.program"


def test_the_hash_of_a_plan_is_that_in_its_file():
    assert hash_payload(PLAN) == encode(PLAN)[20:52]
