"""Python packages that travelled beside the checkout as wheels, for a machine without a network.

`make gpu-wheels` fills the folder `wheels/`; here those that fit this interpreter are unpacked and put on the path.
"""

from __future__ import annotations

import platform
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "wheels"


def fits(name: str, version: tuple[int, int] = sys.version_info[:2], machine: str = platform.machine()) -> bool:
    """Whether a wheel (its file name says) is for this interpreter and processor."""
    tags = name.removesuffix(".whl").split("-")[-3:]
    if len(tags) < 3:
        return False
    pythons, abis, platforms = (tag.split(".") for tag in tags)
    own = f"cp{version[0]}{version[1]}"
    limited = any(_older(python, version) for python in pythons) and "abi3" in abis
    right_python = "py3" in pythons or own in pythons or limited
    return right_python and any(one == "any" or ("linux" in one and one.endswith(machine)) for one in platforms)


def _older(tag: str, version: tuple[int, int]) -> bool:
    digits = tag.removeprefix("cp")
    return tag.startswith("cp3") and digits[1:].isdigit() and (3, int(digits[1:])) <= version


def unpack(wheels: Iterable[Path], target: Path) -> list[str]:
    """Unpacks the wheels that fit; their names. A wheel is an archive of what site-packages would hold."""
    taken = []
    for wheel in sorted(wheels):
        if fits(wheel.name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
            taken.append(wheel.name)
    return taken
