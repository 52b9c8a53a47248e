"""How to install what is missing: commands that work where they are pasted, for the environment of this interpreter.

No index of packages has einc, so nobody can install an extra by the name of einc. The commands name the packages of
the extra themselves. That works however einc was installed, changes nothing of einc, and needs none of its sources.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTIONS = ("einc", "einc-runtime")
"""The compiler and the runtime. Extras of the first may consist of extras of the second."""


def suggest_extra(extra: str, only: str = "") -> str:
    """The command that installs the packages of an extra, or those of them whose names begin with `only`."""
    packages = [requirement for requirement in _list_requirements(extra) if requirement.startswith(only)]
    if not packages:  # a copy of the sources alone
        return f"install the packages of the extra '{extra}', which the file pyproject.toml of einc lists"
    return suggest_packages(*packages)


def suggest_cuda(only: str = "") -> str:
    """The same for GPUs: of the extra that fits the installed cupy, or else the driver."""
    return suggest_extra(f"cuda{find_cuda()}", only)


def suggest_packages(*requirements: str) -> str:
    """The command that installs packages beside einc, as one line for a shell."""
    *before, install = _list_commands()
    return " && ".join(map(_quote, [*before, [*install, *requirements]]))


def find_cuda(library: str = "libcuda.so.1") -> int:
    """Which CUDA packages must be for, 12 or 13: that of the installed cupy, or else of this machine's driver. Without
    them it is 12, whose packages work with newer drivers, too."""
    for cuda in (12, 13):
        if _find_distribution(f"cupy-cuda{cuda}x") is not None:
            return cuda
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version))
    return 13 if version.value >= 13_000 else 12


def _list_requirements(extra: str) -> Sequence[str]:
    """The packages of an extra, with their versions."""
    for name in DISTRIBUTIONS:
        if declared := _list_declared(name, extra):
            packages: list[str] = []
            for requirement in declared:
                project, _, inner = requirement.partition("[")
                packages += _list_declared(project, inner.rstrip("]")) if project in DISTRIBUTIONS else [requirement]
            return packages
    return ()


def _list_declared(name: str, extra: str) -> Sequence[str]:
    """What a distribution's extra needs: as it was declared to the tool that installed it, or, in a checkout that is
    not installed, as its file declares it."""
    installed = _find_distribution(name)
    pattern = re.compile(rf"(.+?)\s*;\s*extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    declared = [match[1] for line in (installed and installed.requires) or () if (match := pattern.fullmatch(line))]
    if declared:
        return declared
    import tomllib

    for folder in Path(__file__).parents[1:3]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
            if project["name"] == name:
                return [str(requirement) for requirement in project["optional-dependencies"][extra]]
    return ()


def _list_commands() -> list[list[str]]:
    """What installs into this environment: commands, of which the last one takes packages."""
    python, has_pip = sys.executable or "python", find_spec("pip") is not None
    in_venv, installed = sys.prefix != sys.base_prefix, _find_distribution(*DISTRIBUTIONS)
    by_uv = installed is not None and (installed.read_text("INSTALLER") or "").strip() == "uv"
    if shutil.which("uv") and (by_uv or not has_pip):
        commands = [["uv", "pip", "install", "--python", python]]
    elif not has_pip:
        commands = [[python, "-m", "ensurepip"], [python, "-m", "pip", "install"]]
    elif in_venv and Path(shutil.which("pip") or "").parent == Path(python).parent:
        commands = [["pip", "install"]]
    else:
        commands = [[python, "-m", "pip", "install"]]
    if not in_venv and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        commands[-1].append("--break-system-packages")  # without which neither tool would have installed einc
    return commands


def _find_distribution(*names: str) -> Distribution | None:
    """The first of these that is installed, as its installation describes it."""
    from importlib import metadata

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.distribution(name)
    return None


def _quote(words: Sequence[str]) -> str:
    if os.name == "nt":  # where shells know double quotes
        return " ".join(word if re.fullmatch(r"[\w.:\\/-]+", word) else f'"{word}"' for word in words)
    return shlex.join(words)
