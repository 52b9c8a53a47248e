"""A plan is proved to compute a model: the model that it was compiled from, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from einc.cli.root import root
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.graph.graph import Graph
from einc.verification.model import verify_model
from einc_runtime.errors import ArrayFault, PlanFault
from einc_runtime.plan.codec import decode
from tests.mutation.plans import CASES, CHAIN, make_plan

TEXT = CHAIN.format(dtype="f32")


def graph_of(text: str, file: str = "model.ein") -> Graph:
    return fuse(build(text, file))


@pytest.mark.parametrize("case", ["once", "lookups", "casts", "largest", "rows", "softmax-width"])
def test_plans_compute_their_models(case: str) -> None:
    verify_model(decode(make_plan(case)), graph_of(CASES[case].source, CASES[case].file))


def test_comments_and_places_do_not_matter() -> None:
    verify_model(decode(make_plan("chain")), graph_of("# a comment\n\n" + TEXT.replace("[a, b]", "[ a,b ]")))


OTHERS = {
    "another function": ("relu", "silu", r"operations\[1\].*title|family|attributes"),
    "other operands": ("matmul(h, w2)", "matmul(h, w3)", "tensors|inputs"),
    "another size": ("dim c = 8", "dim c = 9", "shape"),
    "another name in files": ("mlp.up.weight", "mlp.gate.weight", "stored"),
    "another name": ("input  x ", "input  z ", "tensors"),
    "another output": ("output y", "output y\noutput h", "outputs"),
    "another model name": ("dim a = 6", "model other\ndim a = 6", "model"),
    "one operator more": ("y = matmul(h, w2)", "y = matmul(h, w2) + 1.0", "tensors|operations"),
    "a scale": ("h = relu(matmul(x, w1))", "h = relu(matmul(x, w1) * 1.0001)", "tensors|operations|attributes"),
}


@pytest.mark.parametrize("fault", sorted(OTHERS))
def test_other_models_are_refused(fault: str) -> None:
    old, new, where = OTHERS[fault]
    text = TEXT.replace(old, new)
    if fault == "other operands":
        text = text.replace("weight w2", 'weight w3 : f32[c, b] from "w3"\nweight w2')
    if fault == "another name":
        text = text.replace("matmul(x, w1)", "matmul(z, w1)")
    assert text != TEXT
    with pytest.raises(PlanFault) as caught:
        verify_model(decode(make_plan("chain")), graph_of(text))
    assert re.search(where, str(caught.value.where)), caught.value.render()
    assert "compile the model again" in caught.value.render()


def test_what_only_one_of_both_has_is_named() -> None:
    shorter = graph_of(TEXT.replace("y = matmul(h, w2)\noutput y", "output h"))
    longer = graph_of(TEXT.replace("output y", "output y, h"))
    with pytest.raises(PlanFault, match="the plan has 'y', and the model has not"):
        verify_model(decode(make_plan("chain")), shorter)
    with pytest.raises(PlanFault, match="the model has 'h', and the plan has not"):
        verify_model(decode(make_plan("chain")), longer)


def test_attributes_that_kernels_hardly_show_are_compared() -> None:
    source = CASES["lookups"].source
    for old, new in (("eps=1e-6", "eps=2e-6"), ("theta=500.0", "theta=501.0"), ("seq_lens=[3, 4]", "seq_lens=[4, 3]")):
        with pytest.raises(PlanFault, match="should be"):
            verify_model(decode(make_plan("lookups")), graph_of(source.replace(old, new, 1)))


def test_the_command_proves_text_to_bytes(tmp_path: Path) -> None:
    plan, model = tmp_path / "chain.bin", tmp_path / "model.ein"
    plan.write_bytes(make_plan("chain"))
    model.write_text(TEXT)
    run = CliRunner().invoke
    good = run(root, ["verify", str(plan), "--model", str(model), "--json"])
    assert good.exit_code == 0
    assert any("no more and no less" in line for line in json.loads(good.output)["proved"])
    bad = run(root, ["verify", str(plan), "--model", str(model), "-D", "a=7"])
    assert isinstance(bad.exception, PlanFault)
    assert bad.exception.exit_code == 65
    assert run(root, ["verify", str(plan), "-D", "a=7"]).exit_code == 2
    assert "not proved:" in run(root, ["verify", str(plan)]).output


def test_the_command_looks_at_weights(tmp_path: Path) -> None:
    """An array of a fitting type and shape must be there for every weight, and all of the rows that it names."""
    plan = tmp_path / "rows.bin"
    plan.write_bytes(make_plan("rows"))
    gains = {f"experts.{k}.gain": np.ones(6, "f4") for k in range(3)}

    def verify(qkv: tuple[int, ...], dtype: str = "f4", **arrays: np.ndarray) -> Result:
        np.savez(tmp_path / "w.npz", qkv=np.ones(qkv, dtype), **{**gains, **arrays})
        return CliRunner().invoke(root, ["verify", str(plan), "--weights", str(tmp_path / "w.npz")])

    assert verify((12, 6)).exit_code == 0
    assert verify((14, 6)).exit_code == 0
    for result, message in (
        (verify((11, 6)), "stands for rows 8 to 12 of 11"),
        (verify((12, 5)), r"should be f32\[4, 6\], found f32\[4, 5\]"),
        (verify((12, 6), "i4"), "found i32"),
        (verify((12, 6), **{"experts.1.gain": np.ones(5, "f4")}), "different types or shapes"),
    ):
        assert isinstance(result.exception, ArrayFault)
        assert re.search(message, result.exception.render()), result.exception.render()
