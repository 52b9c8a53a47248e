"""No plan runs that cannot be proved, unless somebody asks for it; proofs of large plans are remembered, safely."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.execution import proved_plans
from einc_runtime.execution.session import Session
from einc_runtime.plan import codec, proof
from einc_runtime.plan.schema import Bundle
from tests.support.handmade_plans import two_site_plan


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(proved_plans, "MAX_SMALL_TASKS", 0)
    return tmp_path / "einc" / "proofs"


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[Bundle]:
    """The plans that are proved from now on."""
    found: list[Bundle] = []
    real = proof.prove
    monkeypatch.setattr(proof, "prove", lambda bundle: (found.append(bundle), real(bundle))[1])
    return found


def wrong_plan() -> Bundle:
    """A plan that loads, and whose last task waits for nothing that it needs."""
    bundle = two_site_plan()
    *tasks, last = bundle.tasks
    return msgspec.structs.replace(bundle, tasks=(*tasks, msgspec.structs.replace(last, after=())))


def test_a_session_proves_its_plan(proofs: list[Bundle]) -> None:
    bundle, wrong = two_site_plan(), wrong_plan()
    Session(bundle)
    assert proofs == [bundle]
    with pytest.raises(PlanFault):
        Session(wrong)
    assert Session(codec.decode(codec.encode(wrong)), verify=False).backend == "cpu"
    assert proofs == [bundle, wrong]


def test_a_proof_is_remembered(home: Path, proofs: list[Bundle]) -> None:
    bundle = two_site_plan()
    assert not proved_plans.require_proof(bundle)
    assert proved_plans.require_proof(codec.decode(codec.encode(bundle)))
    assert len(proofs) == len(list(home.iterdir())) == 1
    other = msgspec.structs.replace(bundle, model="another")
    assert not proved_plans.require_proof(other)
    for _ in range(2):
        with pytest.raises(PlanFault):
            proved_plans.require_proof(wrong_plan())
    assert len(proofs) == 4
    assert len(list(home.iterdir())) == 2


def test_what_was_decoded_is_proved_and_not_validated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(bundle: Bundle) -> None:
        raise AssertionError("validated again")

    good, wrong = (codec.decode(codec.encode(bundle)) for bundle in (two_site_plan(), wrong_plan()))
    monkeypatch.setattr(proof, "validate", refuse)
    assert not proved_plans.require_proof(good, decoded=True)
    with pytest.raises(PlanFault, match="tasks"):
        proved_plans.require_proof(wrong, decoded=True)


def test_another_program_proves_again(home: Path, proofs: list[Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = two_site_plan()
    proved_plans.require_proof(bundle)
    monkeypatch.setattr(proved_plans, "_hash_program", lambda: b"another version")
    assert not proved_plans.require_proof(bundle)
    monkeypatch.setattr(proved_plans, "_hash_program", lambda: None)
    assert not proved_plans.require_proof(bundle)
    assert not proved_plans.require_proof(bundle)
    assert len(proofs) == 4


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
def test_marks_that_others_can_make_count_nothing(home: Path, proofs: list[Bundle]) -> None:
    bundle = two_site_plan()
    proved_plans.require_proof(bundle)
    os.chmod(home, 0o777)
    assert not proved_plans.require_proof(bundle)
    os.chmod(home, 0o700)
    assert proved_plans.require_proof(bundle)


@pytest.mark.parametrize("place", ["file", "x" * 300, "a\0b"], ids=["file", "too long", "no path"])
def test_a_folder_that_cannot_be_used_only_costs_time(
    tmp_path: Path, home: Path, proofs: list[Bundle], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(proved_plans, "user_directory", lambda: tmp_path / place)
    for count in (1, 2):
        assert not proved_plans.require_proof(two_site_plan())
        assert len(proofs) == count


def test_few_proofs_are_remembered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proved_plans, "MAX_REMEMBERED_PROOFS", 5)
    plans = [msgspec.structs.replace(two_site_plan(), model=f"plan{n}") for n in range(9)]
    for n, plan in enumerate(plans):
        proved_plans.require_proof(plan)
        for mark in home.iterdir():
            os.utime(mark, ns=(os.stat(mark).st_atime_ns, os.stat(mark).st_mtime_ns - 10**9 * (9 - n)))
        assert len(list(home.iterdir())) <= 5
    assert proved_plans.require_proof(plans[-1])
    assert not proved_plans.require_proof(plans[0])


def test_run_and_verify_end_alike(tmp_path: Path) -> None:
    plan = tmp_path / "wrong.bin"
    plan.write_bytes(codec.encode(wrong_plan()))
    np.savez(tmp_path / "all.npz", x=np.ones((4, 3), "f4"))
    np.savez(tmp_path / "w.npz", w=np.ones((3, 2), "f4"))
    runtime = [sys.executable, "-m", "einc_runtime"]
    run = ["run", str(plan), "--inputs", str(tmp_path / "all.npz"), "--weights", str(tmp_path / "w.npz"), "--json"]
    ends = [
        subprocess.run([*runtime, *arguments], capture_output=True, text=True, check=False)
        for arguments in (["verify", str(plan), "--json"], run, [*run, "--no-verify"])
    ]
    assert [end.returncode for end in ends] == [65, 65, 0]
    assert json.loads(ends[0].stdout)["error"] == json.loads(ends[1].stdout)["error"]
