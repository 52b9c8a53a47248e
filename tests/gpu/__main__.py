"""`python tests/gpu`: the check, wherever it is run from and whatever other package is called `tests` there.

python tests/gpu [--only probes|correctness|benchmarks] [--no-write] [--output FILE] [--seconds N] [--devices N,M]
                 [--rehearse]
python tests/gpu worker ...                                      what the check itself starts
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _find_own_modules() -> None:
    """The checkout comes first on the path, with the packages `einc` and `tests`; the runtime's package is below it."""
    own = [str(ROOT), str(ROOT / "runtime")]
    sys.path[:] = [*own, *(entry for entry in sys.path if Path(entry).resolve() != ROOT / "tests" / "gpu")]


if __name__ == "__main__":
    _find_own_modules()
    if sys.argv[1:2] == ["worker"] and sys.argv[2:3] in (["probe"], ["links"]):
        from tests.gpu import probe_worker

        probe_worker.main(sys.argv[2:])
    elif sys.argv[1:2] == ["worker"]:
        from tests.gpu import worker

        worker.main(sys.argv[2:])
    else:
        from tests.gpu import check

        sys.exit(check.main(sys.argv[1:]))
