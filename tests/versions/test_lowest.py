"""The lowest versions are read from pyproject.toml as it stands there."""

from __future__ import annotations

import pytest

from tests.versions.lowest import PROJECTS, list_lowest

TEXT = """
[project]
dependencies = ["einc-runtime==1.0", "beta>=1.2", "alpha_c>=0.5.1; python_version < '3.15' and sys_platform == 'linux'"]
[project.optional-dependencies]
generate = ["gamma>=2"]
serve = ["beta>=1.2", "delta.e>=3.0"]
dev = ["unseen"]
"""


def test_every_requirement_has_its_lowest_version() -> None:
    marker = "; python_version < '3.15' and sys_platform == 'linux'"
    assert list_lowest(TEXT) == [f"alpha_c==0.5.1{marker}", "beta==1.2", "delta.e==3.0", "gamma==2"]


def test_a_requirement_without_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="no lowest version: beta<2"):
        list_lowest(TEXT.replace('"beta>=1.2", "delta', '"beta<2", "delta'))


def test_the_project_has_one_for_everything() -> None:
    assert {line.partition("==")[0] for line in list_lowest(*(project.read_text("utf-8") for project in PROJECTS))} >= {
        "numpy",
        "highspy",
        "uvicorn",
    }
