"""Plans are proved before they run. Proofs of large plans are remembered, so that each is proved once on a machine.

What is remembered is an empty file in the user's cache folder, whose name is a hash of the plan and of the program that
proved it. So neither another plan nor another version of the proof is taken for it. Whoever can write to that folder
can claim that a plan is proved, as they could replace the program itself.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from einc_runtime.plan import codec, proof
from einc_runtime.plan.aggregate_definitions import DEFINED, DEFINED_EXACT
from einc_runtime.plan.schema import Bundle
from einc_runtime.remembered import RememberedFiles, find_user_folder, hash_sources

MAX_REMEMBERED_PROOFS = 1000
"""Proofs; if there are more, the older half of them is forgotten."""

MAX_SMALL_TASKS = 300
"""Plans of so few tasks are proved in less time than it takes to look for their proof, some milliseconds."""


def prove(bundle: Bundle, *, decoded: bool = False) -> None:
    """The whole proof: that of the plan (`plan.proof`), and the laws of aggregations that it defines, which are tried.

    Raises PlanFault at the first thing that does not hold. A plan that is `decoded` has been validated.
    """
    (proof.prove_decoded if decoded else proof.prove)(bundle)
    if any(operation.aggregations[0] in (DEFINED, DEFINED_EXACT) for operation in bundle.operations):
        from einc_runtime.kernels.numpy.laws import prove_laws

        prove_laws(bundle)


def require_proof(bundle: Bundle, *, decoded: bool = False) -> bool:
    """Proves a plan, or finds that this has been done before; then the result is true. A plan that is `decoded` comes
    from `codec.decode`, which has validated it.

    Raises PlanFault where the plan cannot be proved. A folder that cannot be used only costs time.
    """
    if len(bundle.tasks) <= MAX_SMALL_TASKS:
        prove(bundle, decoded=decoded)
        return False
    mark = _name_mark(bundle)
    marks = RememberedFiles(user_directory(), MAX_REMEMBERED_PROOFS, 0)
    if mark is not None and marks.find(mark) is not None:
        return True
    prove(bundle, decoded=decoded)
    if mark is not None:
        marks.write(mark, b"")
    return False


def user_directory() -> Path:
    """The directory of the marks of proved plans."""
    return find_user_folder("proofs")


def _name_mark(bundle: Bundle) -> str | None:
    """The name of this plan's mark; None where the proof's program cannot be read."""
    program = _hash_program()
    return None if program is None else hashlib.sha256(program + codec.hash_payload(bundle)).hexdigest()


@cache
def _hash_program() -> bytes | None:
    """A hash of all that decides whether a plan is proved: the runtime's sources of plans, kernels and laws."""
    root = Path(proof.__file__).parents[1]
    files = sorted(path for folder in ("plan", "kernels") for path in (root / folder).rglob("*.py"))
    return hash_sources(root, [*files, root / "laws.py"]) if Path(proof.__file__) in files else None
