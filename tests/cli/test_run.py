"""`einc run`: all forms of arrays, comparisons that hold and that do not, and inputs that are wrong in every way."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einc.cli.main import main
from einc_runtime.plan.codec import decode
from tests.support.paced import within

MODEL = """\
model pair

dim i = 9
dim j = 14
dim k = 5

input x : f32[i, j]
input b : f32[k]
weight w : f32[j, k]

h = matmul(x, w)
y = relu(h + b)
s[i] = max[k](h[i, k])

output y
output s
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled plan with its arrays, and what numpy makes of them."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "pair.ein").write_text(MODEL)
    assert main(["compile", str(folder / "pair.ein"), "-m", "dgx-a100", "-o", str(folder / "p.bin")]) == 0
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.standard_normal(shape).astype("f4") for name, shape in (("x", (9, 14)), ("b", 5), ("w", (14, 5)))
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "inputs.npz", x=arrays["x"], b=arrays["b"])
    np.savez(folder / "weights.npz", w=arrays["w"])
    h = arrays["x"].astype("f8") @ arrays["w"]
    np.save(folder / "expected_y.npy", np.maximum(h + arrays["b"], 0).astype("f4"))
    np.save(folder / "expected_s.npy", h.max(axis=1).astype("f4"))
    return folder


@pytest.fixture
def run(folder: Path, einc: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(folder)
    return lambda *arguments: einc("run", "p.bin", *arguments)


GIVEN = ("--inputs", "inputs.npz", "--weights", "weights.npz")


@pytest.mark.parametrize(
    "inputs",
    [
        ("--inputs", "inputs.npz"),
        ("--inputs", "x.npy", "--inputs", "b.npy"),
        ("--inputs", "x=x.npy", "--inputs", "b=./b.npy"),
    ],
    ids=str,
)
def test_inputs_in_all_forms_give_numpys_result(
    inputs: tuple[str, ...], run: Callable[..., Any], tmp_path: Path
) -> None:
    expected = ("--expect", "y=expected_y.npy", "--expect", "s=expected_s.npy")
    result = run(
        *inputs, "--weights", "weights.npz", *expected, "-o", f"y={tmp_path}/out.npy", "-o", f"{tmp_path}/a.npz"
    )
    assert result.code == 0, result.err
    y = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(y, np.load("expected_y.npy"), atol=1e-5)
    with np.load(tmp_path / "a.npz") as everything:
        assert sorted(everything) == ["s", "y"]
        assert np.array_equal(everything["y"], y)


@pytest.mark.parametrize(
    "weights",
    [("w.npy",), ("w=w.npy",), ("arrays",), ("w=w.npy", "rand:1"), ("w=rand:4", "weights.npz")],
    ids=str,
)
def test_weights_in_all_forms(weights: tuple[str, ...], run: Callable[..., Any], folder: Path) -> None:
    (folder / "arrays").mkdir(exist_ok=True)
    for name in ("w", "of_nothing"):
        (folder / "arrays" / f"{name}.npy").write_bytes((folder / "w.npy").read_bytes())
    options = [part for source in weights for part in ("--weights", source)]
    result = run("--inputs", "inputs.npz", *options, "--expect", "y=expected_y.npy")
    assert result.code == (1 if weights[0] == "w=rand:4" else 0), result.err


def test_json_has_every_promised_field(run: Callable[..., Any]) -> None:
    document = run(*GIVEN, "--json").json()
    assert document == {
        "backend": "cpu",
        "outputs": {"y": {"shape": [9, 5], "dtype": "f32"}, "s": {"shape": [9], "dtype": "f32"}},
        "ms": document["ms"],
        "max_abs_error": None,
        "max_rel_error": None,
        "workers": document["workers"],
        "tasks": document["tasks"],
        "memory_bytes": document["memory_bytes"],
        "libraries": document["libraries"],
    }
    assert len(document["ms"]) == 1
    memory = document["memory_bytes"]
    assert document["workers"] > 0
    assert document["tasks"] > 0
    assert 0 < memory["plan"] < memory["process"]
    assert memory["scratch"] >= 0
    assert run(*GIVEN, "--json", "-o", "y=-").json()["error"]["code"] == "usage"  # both want standard output
    document = run(*GIVEN, "--json", "--check", "--repeat", "3").json()
    assert len(document["ms"]) == 3
    assert all(ms > 0 for ms in document["ms"])
    assert 0 <= document["max_rel_error"] <= 1e-5
    assert 0 <= document["max_abs_error"] <= 1e-4


def test_random_inputs_are_the_same_every_time(run: Callable[..., Any], tmp_path: Path) -> None:
    forms = [("--inputs", "rand:7"), ("--inputs", "x=rand:7", "--inputs", "b=rand:7"),
             ("--inputs", "rand:7", "--inputs", "b=rand:7")]  # fmt: skip
    results = []
    for inputs in forms:
        assert run(*inputs, "--weights", "rand:1", "--check", "-o", f"y={tmp_path}/y.npy").code == 0
        results.append((tmp_path / "y.npy").read_bytes())
    assert results[0] == results[1] == results[2]
    assert run("--inputs", "rand:8", "--weights", "rand:1", "-o", f"y={tmp_path}/y.npy").code == 0
    assert (tmp_path / "y.npy").read_bytes() != results[0]


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_an_output_goes_to_standard_output(name: str, start: Callable[..., Any], folder: Path) -> None:
    """Which is a pipe here."""
    process = start("run", "p.bin", *GIVEN, "-o", f"s={name}", cwd=folder)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    np.testing.assert_allclose(np.load(io.BytesIO(out)), np.load(folder / "expected_s.npy"), atol=1e-5)


def test_a_trace_is_written(run: Callable[..., Any], tmp_path: Path) -> None:
    assert run(*GIVEN, "--trace", tmp_path / "t.json").code == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert json.loads(run(*GIVEN, "--trace", "-").out)["traceEvents"]
    refused = run(*GIVEN, "--trace", "-", "--json")
    assert (refused.code, refused.json()["error"]["code"]) == (2, "usage")


def test_a_comparison_that_does_not_hold_ends_with_1(run: Callable[..., Any], tmp_path: Path) -> None:
    wrong = np.load("expected_y.npy")
    wrong[3, 2] += 0.01
    np.save(tmp_path / "wrong.npy", wrong)
    result = run(*GIVEN, "--expect", f"y={tmp_path}/wrong.npy")
    assert result.code == 1
    assert "above the tolerance" in result.err
    document = run(*GIVEN, "--expect", f"y={tmp_path}/wrong.npy", "--json").json()
    assert document["error"]["code"] == "check"
    assert document["max_abs_error"] == pytest.approx(0.01, rel=0.01)
    wrong[3, 2] = np.nan
    np.save(tmp_path / "wrong.npy", wrong)
    document = run(*GIVEN, "--expect", f"y={tmp_path}/wrong.npy", "--check", "--json").json()
    assert document["max_abs_error"] is None


def test_check_sees_a_plan_that_computes_something_else(run: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """One of two partial results is added twice, the other not at all: only the proof and the check know better."""
    import msgspec

    from einc_runtime.plan.codec import encode
    from einc_runtime.plan.schema import AggregateTask

    source = str(folder / "pair.ein")
    assert main(["compile", source, "-m", "dgx-a100:2", "--pin", "h=j/2", "-o", str(tmp_path / "cut.bin")]) == 0
    bundle = decode((tmp_path / "cut.bin").read_bytes())
    tasks = [
        msgspec.structs.replace(task, reads=task.reads[:1] * len(task.reads))
        if isinstance(task, AggregateTask)
        else task
        for task in bundle.tasks
    ]
    assert tuple(tasks) != bundle.tasks
    (tmp_path / "q.bin").write_bytes(encode(msgspec.structs.replace(bundle, tasks=tuple(tasks))))
    from einc_runtime.cli import failures

    arguments = ["run", str(tmp_path / "q.bin"), *GIVEN]
    assert main([*arguments, "--no-verify"]) == 0
    assert main([*arguments, "--no-verify", "--check"]) == 1
    assert main(arguments) == 65
    assert failures.SUCCESS == 0


def npy(descr: str, shape: str, data: bytes, fortran: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


GOOD = np.arange(126, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"no array at all",
        npy("'<f4'", "(9, 14)", GOOD[:-1]),
        npy("'<f4'", "(9, 14)", GOOD + b"\0"),
        npy("'<f4'", "(14, 9)", GOOD),
        npy("'<f4'", "(9, 13)", GOOD),
        npy("'<f4'", "(126,)", GOOD),
        npy("'<f8'", "(9, 14)", GOOD * 2),
        npy("'<i4'", "(9, 14)", GOOD),
        npy("'<f4'", "(9, -14)", GOOD),
        npy("'<f4'", f"({2**62}, {2**62})", GOOD),
        npy("'|O'", "(9, 14)", GOOD),
        npy("[('a', '<f4')]", "(9, 14)", GOOD),
        npy("'<f4'", "(9, 14)", GOOD, "[]"),
        npy("__import__('os').abort()", "(9, 14)", GOOD),
        npy("'<f4'", "(" * 5000 + ")" * 5000, GOOD),
    ],
    ids=range(17),
)
def test_a_bad_array_is_refused(content: bytes, run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(content)
    result = run("--inputs", f"x={tmp_path}/bad.npy", "--inputs", "b.npy", "--weights", "w=w.npy")
    assert result.code in (2, 65)
    result = run("--inputs", f"x={tmp_path}/bad.npy", "--inputs", "b.npy", "--weights", "weights.npz", "--json",
                 "-o", f"{tmp_path}/all.npz")  # fmt: skip
    assert result.code == 65
    assert result.json()["error"]["code"] == "array"
    assert str(tmp_path / "bad.npy") in result.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.npy"]


@pytest.mark.parametrize("order", ["big-endian", "fortran"])
def test_other_byte_and_memory_orders_are_read_right(order: str, run: Callable[..., Any], tmp_path: Path) -> None:
    x = np.load("x.npy")
    np.save(tmp_path / "x.npy", x.astype(">f4") if order == "big-endian" else np.asfortranarray(x))
    operands = ("--inputs", tmp_path / "x.npy", "--inputs", "b.npy", "--weights", "weights.npz")
    assert run(*operands, "--expect", "y=expected_y.npy").code == 0


def test_an_archive_bomb_is_refused_unread(run: Callable[..., Any], tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(npy("'<f4'", "(9, 14)", GOOD))
        for _ in range(64):
            member.write(b"\0" * (1 << 20))
    with within(10):
        assert run("--inputs", bomb, "--inputs", "b.npy", "--weights", "weights.npz").code == 65


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 65, "'x', 'b'"),
        (("--inputs", "x.npy"), 65, "nothing is given for input 'b'"),
        (("--inputs", "inputs.npz"), 65, "weight"),
        (("--inputs", "inputs.npz", "--inputs", "x.npy"), 65, "twice"),
        (("--inputs", "x.npy", "--inputs", "x=x.npy"), 65, "twice"),
        (("--inputs", "rand:1", "--inputs", "rand:2"), 2, "twice"),
        (("--inputs", "xx=x.npy"), 65, "there are 'x', 'b'"),
        (("--inputs", "w=w.npy"), 65, "no input 'w'"),
        (("--inputs", "expected_y.npy"), 2, "which input"),
        (("--inputs", "missing.npy"), 2, "which input"),
        (("--inputs", "x=missing.npy"), 2, "no such file"),
        (("--inputs", "missing.npz"), 2, "no such file"),
        (("--inputs", "x=."), 74, "directory"),
        (("--inputs", "x=rand:-1"), 65, "seed"),
        (("--inputs", "x=rand:"), 65, "seed"),
        (("--inputs", "weights.npz"), 65, "w"),
        ((*GIVEN[:2], "--weights", "missing.safetensors"), 2, "no such file"),
        ((*GIVEN[:2], "--weights", "x.npy"), 65, "x.npy"),
        ((*GIVEN[:2], "--weights", "inputs.npz"), 65, "'w'"),
        ((*GIVEN, "-o", "y.npy", "-o", "z=z.npy"), 65, "no output 'z'"),
        ((*GIVEN, "-o", "out.npy"), 2, "which output"),
        ((*GIVEN, "-o", "y=missing/y.npy"), 73, "missing/y.npy"),
        ((*GIVEN, "-o", "y=/dev/full"), 73, "/dev/full"),
        ((*GIVEN, "--expect", "y=x.npy"), 65, "expected f32[9, 5]"),
        ((*GIVEN, "--backend", "cuda", "--devices", "9,9,9,9,9,9,9,9"), 69, "GPU"),
        ((*GIVEN, "--backend", "tpu"), 2, "tpu"),
        ((*GIVEN, "--devices", "0,1"), 65, "8 sites"),
        ((*GIVEN, "--repeat", "0"), 2, "repeat"),
        ((*GIVEN, "--trace", "missing/t.json"), 73, "missing/t.json"),
        ((*GIVEN, "--trace", "-", "-o", "y=-"), 2, "-o - and --trace - both need standard output"),
    ],
)  # fmt: skip
def test_wrong_calls_are_explained(
    arguments: tuple[str, ...], code: int, words: str, run: Callable[..., Any], folder: Path
) -> None:
    before = sorted(folder.iterdir())
    result = run(*arguments)
    assert (result.code, result.out) == (code, ""), result.err
    assert words in result.err
    assert sorted(folder.iterdir()) == before


def test_truncated_and_damaged_plans_are_refused(folder: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    data = (folder / "p.bin").read_bytes()
    bad = tmp_path / "bad.bin"
    cuts = [0, 1, 7, 8, 20, 51, 52, 53, len(data) // 2, len(data) - 1]
    flips = [3, 11, 15, 30, 60, len(data) // 2, len(data) - 1]
    contents = [data[:cut] for cut in cuts]
    contents += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in flips]
    contents += [data + b"\0", b"\x89EINC\r\n\x1a" + os.urandom(300)]
    for content in contents:
        bad.write_bytes(content)
        for command in ("verify", "explain", "run"):
            result = einc(command, bad, "--json")
            assert result.code == 65
            assert result.json()["error"]["code"] == "plan"
            assert str(bad) in result.err


def test_a_model_is_no_plan(einc: Callable[..., Any], folder: Path) -> None:
    for command in ("run", "verify"):
        assert einc(command, folder / "pair.ein").code == 65


def test_bf16_goes_in_and_out_as_f32(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "p.bin"
    assert einc("compile", folder / "pair.ein", "-m", "dgx-a100", "--dtype", "bf16", "-o", plan).code == 0
    operands = ("--inputs", folder / "inputs.npz", "--weights", folder / "weights.npz")
    result = einc("run", plan, *operands, "--check", "-o", f"y={tmp_path}/y.npy", "--json")
    assert result.code == 0, result.err
    assert result.json()["outputs"]["y"]["dtype"] == "bf16"
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.load(folder / "expected_y.npy"), atol=0.1)
    assert not (y.view("u4") & 0xFFFF).any()


def test_an_interrupt_ends_a_run_at_once(
    start: Callable[..., subprocess.Popen[bytes]], folder: Path, tmp_path: Path
) -> None:
    plan, target = tmp_path / "p.bin", tmp_path / "outputs"
    os.mkfifo(plan)
    target.mkdir()
    endless = ("run", plan, *GIVEN, "--repeat", "1000000", "-o", f"y={target}/y.npy")
    for moment in (0.0, 0.4):
        process = start(*endless, cwd=folder, start_new_session=True)
        plan.write_bytes((folder / "p.bin").read_bytes())  # when the command reads it: before, interrupts are Python's
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (130, b""), err
        assert b"Traceback" not in err
        assert list(target.iterdir()) == []
