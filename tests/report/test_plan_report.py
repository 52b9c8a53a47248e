"""The report section of a plan: hostile bytes give one clear error, and a plan runs and is explained without it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from click.testing import CliRunner, Result

from einc.cli.root import root
from einc.plan_report import (
    REPORT_VERSION,
    UNKNOWN_REPORT,
    BaselineTime,
    ConsideredShape,
    Contender,
    MemoryPoint,
    PipelineStage,
    PlanReport,
    encode_report,
    explain_unknown,
    read_report,
)
from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import encode
from einc_runtime.plan.schema import Bundle
from tests.support.handmade_plans import two_site_plan
from tests.support.plan_reports import change_report

WHOLE = PlanReport(
    exact=True,
    cut_cost=7,
    memory_limit=1,
    unrestricted_ms=0.5,
    baselines=(BaselineTime("a"), BaselineTime("b", 1.0, 2, "slower")),
    contenders=(Contender("a"), Contender("b", True, 1.0, 2, 3, "the fastest", True, 0.5)),
    memory_points=(MemoryPoint(1, 2.0),),
    stages=(PipelineStage("a", 2, ((0,), (2,))), PipelineStage("c", 1, ((1,), (3,)))),
    microbatches=4,
    replicas=2,
    shapes=(ConsideredShape(2, 4, 2, 1.0, True, True),),
)


def with_bytes(report: bytes) -> Bundle:
    return msgspec.structs.replace(two_site_plan(), report=report)


@pytest.mark.parametrize("report", [WHOLE, PlanReport()], ids=["all", "nothing"])
def test_a_report_is_read_as_it_was_written(report: PlanReport) -> None:
    bundle = with_bytes(encode_report(report))
    assert read_report(bundle) == report
    assert explain_unknown(bundle) is None


def test_an_independent_reader_sees_the_documented_layout() -> None:
    data = encode_report(WHOLE)
    assert struct.unpack(">I", data[:4]) == (REPORT_VERSION,) == (2,)
    fields = msgpack.unpackb(data[4:])
    assert list(fields) == [
        "exact", "cut_cost", "memory_limit", "unrestricted_ms", "baselines", "contenders", "memory_points",
        "stages", "microbatches", "replicas", "shapes",
    ]  # fmt: skip
    assert fields["baselines"][1] == {
        "name": "b", "predicted_ms": 1.0, "memory": 2, "note": "slower", "chosen": False,
    }  # fmt: skip
    assert msgpack.packb(fields) == data[4:]


@pytest.mark.parametrize(("report", "why"), [(b"", "has no report"), (b"\0\0\0\x01whatever", "version 1")])
def test_what_cannot_be_read_is_unknown(report: bytes, why: str) -> None:
    bundle = with_bytes(report)
    assert read_report(bundle) == UNKNOWN_REPORT
    assert why in (explain_unknown(bundle) or "")


def packed(**fields: Any) -> bytes:
    """A report of this version with other values of fields, which need not be of their types."""
    complete = msgpack.unpackb(encode_report(WHOLE)[4:])
    return struct.pack(">I", REPORT_VERSION) + msgpack.packb(complete | fields)


HOSTILE = {
    "a part of a version": b"\0\0\0",
    "no record": packed()[:4],
    "no map": packed()[:4] + b"\x01",
    "nested": packed()[:4] + b"\x91" * 100_000,
    "an array of 2^32 - 1": packed()[:4] + b"\xdd\xff\xff\xff\xff",
    "bytes behind it": packed() + b"\0",
    "an unknown field": packed(more=1),
    "a duplicate field": packed()[:4] + b"\x88" + packed()[5:] + b"\xa5exact\xc2",
    "another order": packed()[:4] + msgpack.packb(dict(reversed(msgpack.unpackb(packed()[4:]).items()))),
    "a wide number": packed().replace(b"\xa8cut_cost\x07", b"\xa8cut_cost\xcc\x07"),
    "a text for a number": packed(cut_cost="7"),
    "binary": packed(baselines=[{"name": b"a"}]),
    "a control character": packed(exact="\x1b[31m"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_give_one_error(name: str) -> None:
    with pytest.raises(PlanFault) as caught:
        read_report(with_bytes(HOSTILE[name]))
    assert caught.value.where == "report"
    assert caught.value.render().isprintable()


LIES: list[tuple[str, object, str, str]] = [
    ("cut_cost", -1, "cut_cost", "between"),
    ("cut_cost", 1 << 63, "cut_cost", "between"),
    ("unrestricted_ms", -1.0, "unrestricted_ms", "not a duration"),
    ("memory_limit", -1, "memory_limit", "-1"),
    ("baselines", (BaselineTime("a\n"),), "baselines[0].name", "printable"),
    ("baselines", (BaselineTime("a", float("nan")),), "baselines[0].predicted_ms", "nan"),
    ("baselines", (BaselineTime("a", 1.0, -1),), "baselines[0].memory", "-1"),
    ("baselines", (BaselineTime("a", 1.0),), "baselines[0]", "only a part"),
    ("baselines", (BaselineTime("a", memory=1),), "baselines[0]", "only a part"),
    ("baselines", (BaselineTime("a", note="\x07"),), "baselines[0].note", "printable"),
    ("baselines", (BaselineTime("a"),) * 65, "baselines", "65 entries"),
    ("contenders", (Contender("a\n"),), "contenders[0].name", "printable"),
    ("contenders", (Contender("a", reason="\x07"),), "contenders[0].reason", "printable"),
    ("contenders", (Contender("a", predicted_ms=1.0),), "contenders[0]", "only a part"),
    ("contenders", (Contender("a", predicted_ms=1.0, memory=-1, cost=0),), "contenders[0].memory", "-1"),
    ("contenders", (Contender("a", promised_ms=float("nan")),), "contenders[0].promised_ms", "nan"),
    ("contenders", (Contender("a"),) * 65, "contenders", "65 entries"),
    ("memory_points", (MemoryPoint(-1, 1.0),), "memory_points[0].memory", "-1"),
    ("memory_points", (MemoryPoint(1, float("inf")),), "memory_points[0].predicted_ms", "inf"),
    ("stages", (PipelineStage("a\n", 1, ((0,), (1,))),), "stages[0].first", "printable"),
    ("stages", (PipelineStage("a", -1, ((0,), (1,))),), "stages[0].operations", "-1"),
    ("stages", (PipelineStage("a", 1, ((0,),)),), "stages[0].sites", "not those of every replica"),
    ("stages", (PipelineStage("a", 1, ((0,), (-1,))),), "stages[0].sites", "-1"),
    ("microbatches", 0, "microbatches", "0 of them"),
    ("stages", (), "microbatches", "of no stages"),
    ("shapes", (ConsideredShape(1, 1, 1, float("nan")),), "shapes[0].predicted_ms", "nan"),
    ("shapes", (ConsideredShape(1, 0, 1, 1.0),), "shapes[0]", "0 is no number"),
]


@pytest.mark.parametrize(
    ("field", "lie", "where", "message"), LIES, ids=[f"{lie[0]}-{n}" for n, lie in enumerate(LIES)]
)
def test_a_lie_is_found_and_named(field: str, lie: object, where: str, message: str) -> None:
    with pytest.raises(PlanFault) as caught:
        read_report(with_bytes(encode_report(msgspec.structs.replace(WHOLE, **{field: lie}))))
    assert caught.value.where == f"report.{where}"
    assert message in caught.value.message


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    text = "model m\ndim i = 8; dim j = 6\ninput x : f32[i, j]\ny = softmax(x)\noutput y\n"
    return compile_model(text, "m.ein", CompileOptions(machine="dgx-a100", devices=2)).bundle


def run(plan: Path, bundle: Bundle, *arguments: str) -> Result:
    plan.write_bytes(encode(bundle))
    return CliRunner().invoke(root, [*arguments[:1], str(plan), *arguments[1:]], catch_exceptions=False)


@pytest.mark.parametrize("report", [b"", b"\0\0\0\x01whatever", b"\0\0\0\x02\x91damaged"])
def test_a_plan_runs_whatever_its_report_is(bundle: Bundle, report: bytes, tmp_path: Path) -> None:
    changed = msgspec.structs.replace(bundle, report=report)
    result = run(tmp_path / "p.bin", changed, "run", "--backend", "cpu", "--inputs", "rand:0", "--json")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("report", "why"), [(b"", "the plan has no report"), (b"\0\0\0\x01whatever", "has version 1")])
def test_explain_says_what_is_missing(bundle: Bundle, report: bytes, why: str, tmp_path: Path) -> None:
    changed = msgspec.structs.replace(bundle, report=report)
    result = run(tmp_path / "p.bin", changed, "explain")
    assert result.exit_code == 0, result.output
    assert why in " ".join(result.output.split())
    document = json.loads(run(tmp_path / "p.bin", changed, "explain", "--json").output)
    assert why in document["unknown"]
    assert [document[name] for name in ("exact", "cut_cost", "contenders")] == [None, None, []]
    assert document["predicted_ms"] == bundle.predicted_ms
    assert run(tmp_path / "p.bin", bundle, "explain", "--json").exit_code == 0
    page = tmp_path / "p.html"
    assert run(tmp_path / "p.bin", changed, "explain", "--html", str(page)).exit_code == 0
    assert why in page.read_text()


def test_explain_refuses_a_damaged_report(bundle: Bundle, tmp_path: Path) -> None:
    damaged = msgspec.structs.replace(bundle, report=b"\0\0\0\x02\x91damaged")
    (tmp_path / "p.bin").write_bytes(encode(damaged))
    result = CliRunner().invoke(root, ["explain", str(tmp_path / "p.bin")])
    assert isinstance(result.exception, PlanFault)
    assert result.exception.where == "report"


def test_a_report_can_be_changed_and_the_plan_stays(bundle: Bundle) -> None:
    changed = change_report(bundle, cut_cost=3)
    assert read_report(changed).cut_cost == 3
    assert msgspec.structs.replace(changed, report=bundle.report) == bundle
