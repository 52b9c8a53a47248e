"""The lowest versions that pyproject.toml allows of what einc needs, as constraints for pip: `make test-lowest`.

    python -m tests.versions.lowest > constraints.txt

They are those of einc itself and of the extras that text and serving need. What tests and checks need beside them is as
new as the registry has it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("generate", "serve")
CHECKOUT = Path(__file__).parents[2]
PROJECTS = (CHECKOUT / "pyproject.toml", CHECKOUT / "runtime" / "pyproject.toml")


def list_lowest(*projects: str) -> list[str]:
    """`name==version` for every requirement `name>=version` of project files, with its marker."""
    tables = [tomllib.loads(project)["project"] for project in projects]
    groups = [table["dependencies"] for table in tables]
    groups += [table["optional-dependencies"].get(extra, []) for table in tables for extra in EXTRAS]
    lowest = {}
    for requirement in (line for group in groups for line in group):
        if requirement.startswith("einc-runtime"):  # which is in the checkout
            continue
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)(\s*;.*)?", requirement)
        if match is None:
            raise ValueError(f"no lowest version: {requirement}")
        lowest[match[1]] = f"{match[1]}=={match[2]}{match[3] or ''}"
    return [lowest[name] for name in sorted(lowest, key=str.lower)]


if __name__ == "__main__":
    sys.stdout.write("\n".join(list_lowest(*(project.read_text("utf-8") for project in PROJECTS))) + "\n")
