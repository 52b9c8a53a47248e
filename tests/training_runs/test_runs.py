"""Training runs: what each step gets, that an interrupted run ends with the same bits, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import einc as es
from einc.cli.main import main
from einc.report.html.plot import PlotAxis
from einc.training_runs.batches import choose_samples, open_batches
from einc.training_runs.checkpoints import RunProgress
from einc.training_runs.initial import make_weights
from einc.training_runs.settings import RunSettings, find_rate
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import encode
from tests.support.training_texts import LETTERS


@pytest.fixture(scope="module")
def plan() -> es.Plan:
    return es.compile(
        LETTERS, "host", 2, train="loss", optimizer="adamw", clip=1.0, selector="eindecomp", schedule="naive"
    )


@pytest.fixture
def folder(tmp_path: Path, plan: es.Plan, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("step.bin").write_bytes(encode(plan.bundle))
    tokens = np.cumsum(np.random.default_rng(0).integers(1, 3, 200)) % 11
    np.save("tokens.npy", tokens.astype("i4"))
    np.save("held.npy", tokens[-60:])
    return tmp_path


def train(*more: object, steps: int = 13) -> int:
    words = ["train", "step.bin", "--data", "tokens.npy", "--weights", "init:3", "--rate", "0.02", "--steps", steps]
    words += ["--evaluate", "held.npy", "--evaluate-every", 4, "--evaluate-batches", 3]
    return main([str(word) for word in (*words, *more)])


def test_a_run_learns_and_shows_its_losses(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train("--losses", "l.csv", "--page", "l.html", "--json", "--schedule", "cosine", steps=40) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["steps"] == 40
    assert document["loss"] < document["first_loss"]
    rows = [line.split(",") for line in (folder / "l.csv").read_text().splitlines()]
    assert rows[0] == ["step", "loss", "rate", "held_out"]
    assert [row[0] for row in rows if row[3]] == ["step", *map(str, range(4, 41, 4))]
    assert float(rows[-1][3]) == pytest.approx(document["held_out_loss"])
    assert (folder / "l.html").read_text().count("<polyline") == 2


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1, 40, [5, 10, 15, 20, 25, 30, 35, 40]), (1, 1, [1]), (1, 3, [1, 1.5, 2, 2.5, 3]),
        (0.0312, 0.0587, [0.035, 0.04, 0.045, 0.05, 0.055]),
        (-3.2, 9.1, [-2, 0, 2, 4, 6, 8]), (1, 120_000, [20_000, 40_000, 60_000, 80_000, 100_000, 120_000]),
    ],
)  # fmt: skip
def test_labels_of_axes_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert PlotAxis(low, high, 0.0, 700.0).list_ticks() == pytest.approx(ticks)


@pytest.mark.parametrize("interrupted", [(5,), (1, 2, 20)])
def test_an_interrupted_run_ends_with_the_same_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], interrupted: tuple[int, ...]
) -> None:
    """Wherever it stops, also between a step and its checkpoint."""
    assert train("--checkpoints", "whole", "--losses", "whole.csv") == 0
    execute, count = Session._execute, 0

    def stop_at(session: Session, trace: bool) -> float:
        nonlocal count
        count += 1
        if count in stops:
            raise KeyboardInterrupt
        return execute(session, trace)

    for number in (*interrupted, 10**6):
        stops, count = {number}, 0
        monkeypatch.setattr(Session, "_execute", stop_at)
        code = train("--checkpoints", "parts", "--checkpoint-every", 2, "--resume", "--losses", "parts.csv")
        assert code == (130 if number < 100 else 0)
        kept = sorted((folder / "parts").glob("step-*.safetensors"))
        left = f"--resume goes on from {kept[-1].relative_to(folder)}" if kept else "nothing was kept"
        assert (f" of 13; {left}" in capfd.readouterr().err) == (code == 130)
    name = "step-00000013.safetensors"
    assert (folder / "whole" / name).read_bytes() == (folder / "parts" / name).read_bytes()
    assert (folder / "whole.csv").read_bytes() == (folder / "parts.csv").read_bytes()
    assert len([*(folder / "parts").iterdir()]) == 2


def test_held_out_losses_change_nothing(folder: Path) -> None:
    assert train("--checkpoints", "with") == 0
    words = ["train", "step.bin", "--data", "tokens.npy", "--weights", "init:3", "--rate", "0.02", "--steps", "13"]
    assert main([*words, "--checkpoints", "without"]) == 0
    found = [load_file(folder / name / "step-00000013.safetensors") for name in ("with", "without")]
    assert {"wte.weight", "table.mean", "square"} <= found[0].keys()
    for name, array in found[1].items():
        if not name.startswith("training.eval"):
            np.testing.assert_array_equal(found[0][name], array)


def test_a_loop_of_ones_own(folder: Path) -> None:
    """Held-out losses change nothing, and a checkpoint goes on with the same bits, in a loop as in the command."""
    options = {"train": "loss", "optimizer": "adamw", "selector": "eindecomp", "schedule": "naive"}
    first, second = (es.compile(LETTERS, "host", 2, **options) for _ in range(2))
    batches = open_batches(first.bundle, ["tokens.npy"], 0)
    first.loadWeights(make_weights(first.bundle, "init:3"))
    losses = [first.trainStep(**batches.draw(n), learning_rate=0.02) for n in (1, 2)]
    held_out = batches.draw(9)
    loss = first.evaluate(**held_out)
    assert losses[1] != first.evaluate(**held_out) == loss
    first.saveCheckpoint("own.safetensors")
    assert second.loadCheckpoint("own.safetensors").evaluate(**held_out) == loss
    more = [[plan.trainStep(**batches.draw(n), learning_rate=0.02) for n in (3, 4, 5)] for plan in (first, second)]
    assert more[0] == more[1]
    names = [tensor.name for tensor in first.session.states]
    assert all((first.session.offload(name) == second.session.offload(name)).all() for name in names)
    Path("run").mkdir()
    first.saveCheckpoint("run/step-00000005.safetensors")
    assert load_file("run/step-00000005.safetensors")["training.losses"].tolist() == [*losses, *more[0]]
    with pytest.raises(ArrayFault, match="it has no"):
        second.loadCheckpoint(write_other_file())
    assert second.trainStep(**batches.draw(6), learning_rate=0.02) == first.trainStep(
        **batches.draw(6), learning_rate=0.02
    )


def write_other_file() -> str:
    save_file({"wte.weight": np.zeros((11, 6), "f4")}, "other.safetensors")
    return "other.safetensors"


def test_a_resumed_run_tells_no_held_out_loss_of_earlier_weights(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("--checkpoints", "run", steps=4) == 0
    words = ["train", "step.bin", "--data", "tokens.npy", "--rate", "0.02", "--checkpoints", "run", "--resume"]
    capfd.readouterr()
    assert main([*words, "--steps", "4", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["held_out_loss"] is not None
    assert main([*words, "--steps", "5", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["held_out_loss"] is None


def test_factors_of_norms_begin_as_1(plan: es.Plan) -> None:
    weights = make_weights(plan.bundle, "init:3")
    assert (weights["gain"] == 1).all()
    assert 0.01 < weights["table"].std() < 0.03


def test_samples_and_rates(folder: Path, plan: es.Plan) -> None:
    """An epoch has each sample once; targets are the next tokens; rates rise evenly and fall to their floor."""
    for epoch in range(3):
        drawn = [choose_samples(7, 10, 5, 1 + 2 * epoch + step) for step in range(2)]
        assert sorted(np.concatenate(drawn)) == [*range(10)]
    assert sorted(choose_samples(7, 10, 25, 1)[:10]) == [*range(10)]
    batches, tokens = open_batches(plan.bundle, ["tokens.npy"], 0), np.load("tokens.npy")
    sample = batches.draw(4)
    assert sample["ids"].shape == (3, 8)
    for ids, targets in zip(sample["ids"], sample["targets"], strict=True):
        places = [n for n in range(0, 192, 8) if (tokens[n : n + 8] == ids).all()]
        assert any((tokens[n + 1 : n + 9] == targets).all() for n in places)
    cosine = RunSettings(100, 2.0, "cosine", warmup=10, floor=0.25)
    rates = [find_rate(cosine, step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.2 * n for n in range(1, 11)])
    assert rates[54] == pytest.approx(2 * (0.25 + 0.75 / 2))
    assert rates[-1] == pytest.approx(0.5)
    assert rates[9:] == sorted(rates[9:], reverse=True)


def change_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-9]), "bytes"),
    "no weight": (lambda p: change_header(p, lambda h: h.update(other=h.pop("square"))), "it has no 'square'"),
    "another shape": (lambda p: change_header(p, lambda h: h["square"].update(shape=[4, 9])), "expected f32"),
    "more losses": (lambda p: p.rename(p.with_name("step-00000099.safetensors")), "not those of a run"),
    "other data": (lambda p: np.save("tokens.npy", np.arange(90) % 11), "other data"),
}  # fmt: skip


@pytest.mark.parametrize("lie", CHECKPOINTS)
def test_hostile_checkpoints_are_refused(folder: Path, capfd: pytest.CaptureFixture[str], lie: str) -> None:
    assert train("--checkpoints", "run", steps=2) == 0
    (path,) = (folder / "run").iterdir()
    CHECKPOINTS[lie][0](path)
    capfd.readouterr()
    assert train("--checkpoints", "run", "--resume", steps=3) == 65
    error = capfd.readouterr().err
    assert CHECKPOINTS[lie][1] in error
    assert "Traceback" not in error
    assert train("--checkpoints", "run", steps=3) == 2  # there are checkpoints already


DATA: dict[str, tuple[Callable[[], object], str]] = {
    "two dimensions": (lambda: np.save("tokens.npy", np.zeros((9, 9), "i4")), "one dimension"),
    "floats": (lambda: np.save("tokens.npy", np.zeros(99)), "text of tokens"),
    "negative": (lambda: np.save("tokens.npy", np.full(99, -1)), "0 or more"),
    "too short": (lambda: np.save("tokens.npy", np.zeros(8, "i8")), "a sample takes 9"),
    "less than a step": (lambda: np.save("tokens.npy", np.zeros(17, "i8")), "2 samples of 8 tokens.* takes 3"),
    "objects": (lambda: np.save("tokens.npy", np.array([{}]), allow_pickle=True), "type"),
    "cut short": (lambda: Path("tokens.npy").write_bytes(Path("tokens.npy").read_bytes()[:-5]), "is cut short"),
}  # fmt: skip


def test_hostile_data_is_refused(folder: Path, plan: es.Plan, capfd: pytest.CaptureFixture[str]) -> None:
    for spoil, message in DATA.values():
        np.save("tokens.npy", np.zeros(99, "i4"))
        spoil()
        with pytest.raises(ArrayFault, match=message):
            open_batches(plan.bundle, ["tokens.npy"], 0).draw(1)
    assert train("--checkpoints", "run", steps=2) == 65
    np.save("tokens.npy", np.full(99, 11))
    assert train("--checkpoints", "run", steps=2) == 65  # the model has 11 tokens, from 0
    Path("tokens.npy").unlink()
    assert train("--checkpoints", "run", steps=2) == 2
    assert "Traceback" not in capfd.readouterr().err
    assert [*(folder / "run").iterdir()] == []


def test_rows_of_inputs(folder: Path) -> None:
    text = "model r\ndim n = 4\ndim w = 3\ninput x : f32[n, w]\ninput t : f32[n]\nweight u : f32[w]\n"
    text += 'e[n] = sum[w](x[n, w] * u[w]) - t[n]\noutput loss = mean(e * e, "n")\n'
    step = es.compile(text, "host", 1, train="loss", optimizer="sgd", selector="eindecomp", schedule="naive")
    x = np.random.default_rng(1).standard_normal((10, 3)).astype("f4")
    np.save("x.npy", x)
    np.save("t.npy", x @ np.array([1, -2, 3], "f4"))
    batches = open_batches(step.bundle, ["x=x.npy", "t=t.npy"], 5)
    step.loadWeights({"u": np.zeros(3, "f4")})
    losses = [step.trainStep(**batches.draw(n), learning_rate=0.1) for n in range(1, 61)]
    assert losses[-1] < 0.02 * losses[0]
    np.save("t.npy", np.zeros(9, "f4"))
    with pytest.raises(ArrayFault, match="as many rows"):
        open_batches(step.bundle, ["x=x.npy", "t=t.npy"], 5)
    for name, array in (("x.npy", x[:3]), ("t.npy", np.zeros(3, "f4"))):
        np.save(name, array)
    with pytest.raises(ArrayFault, match="3 rows, and a step takes 4"):
        open_batches(step.bundle, ["x=x.npy", "t=t.npy"], 5)
    assert RunProgress(0, b"").step == 0


def test_weights_of_rows_are_read_from_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that reads rows of tensors trains; another one reads the rows, or the tensor, from its checkpoint."""
    monkeypatch.chdir(tmp_path)
    text = "model r\ndim n = 4\ndim w = 3\ndim h = 2\ndim d = 5\ninput x : f32[n, w]\n"
    weights = 'weight a : f32[h, d, w] from "qkv[0:10]"\nweight b : f32[d, w] from "qkv[10:15]"\n'
    text += f"{weights}p[n, h, d] = x[n, w] * a[h, d, w]\nq[n, d] = x[n, w] * b[d, w]\n"
    text += 'e = sum(p, "h") - q\noutput loss = mean(e * e, "n", "d")\n'
    step = es.compile(text, "host", 1, train="loss", optimizer="sgd", selector="eindecomp", schedule="naive")
    Path("step.bin").write_bytes(encode(step.bundle))
    np.save("x.npy", np.random.default_rng(1).standard_normal((10, 3)).astype("f4"))
    run = ["--weights", "init:0", "--steps", "2", "--rate", "0.1", "--checkpoints", "run"]
    assert main(["train", "step.bin", "--data", "x=x.npy", *run]) == 0
    (last,) = Path("run").iterdir()
    stored = load_file(last)
    assert stored["qkv[0:10]"].shape == (2, 5, 3)
    full = "model s\ndim n = 4\ndim w = 3\ndim r = 15\ninput x : f32[n, w]\n"
    full += 'weight c : f32[r, w] from "qkv"\nweight k : f32[5, w] from "qkv[10:15]"\n'
    full += "y[n, r] = x[n, w] * c[r, w]\nz[i = 5, n] = k[i, w] * x[n, w]\noutput y, z\n"
    plan = es.compile(full, "host", 1, selector="eindecomp", schedule="naive").loadWeights(str(last))
    rows = np.concatenate([stored["qkv[0:10]"].reshape(10, 3), stored["qkv[10:15]"]])
    x = np.eye(4, 3, dtype="f4")
    outputs = plan.run(x=x)
    np.testing.assert_allclose(outputs["y"], x @ rows.T, rtol=1e-6)
    np.testing.assert_allclose(outputs["z"], rows[10:] @ x.T, rtol=1e-6)
