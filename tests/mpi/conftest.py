"""None of these tests is skipped where MPI is missing: who asks for them is told what to install."""

import pytest

from tests.support.mpi_runs import require_mpi


@pytest.fixture(scope="session", autouse=True)
def mpi():
    require_mpi()
