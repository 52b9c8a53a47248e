"""A folder with Debian's Python for arm64, and the packages that the tests need, in `build/arm`.

Nothing of it is installed: packages of Debian and wheels are unpacked. Making it needs root, as debootstrap does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "arm"
SYSTEM, PACKAGES, PYTHON = FOLDER / "system", FOLDER / "packages", FOLDER / "python"
TOOLS = ("qemu-aarch64-static", "debootstrap", "dpkg")
SUITE, VERSION = "bookworm", "3.11"
"""Of Debian, and of its Python."""

LIBRARIES = "python3,python3-minimal,libgomp1,libstdc++6,libatomic1"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
WHEELS = (
    "click", "highspy", "hypothesis", "jinja2", "lapx", "lark", "llvmlite", "ml_dtypes", "msgpack", "msgspec", "numpy",
    "pytest", "rich", "safetensors", "threadpoolctl", "tokenizers",
)  # fmt: skip
"""What einc needs, but for libraries that there are for x86-64 alone, and what these tests do."""

_CUSTOMIZE = """import os, sys
sys.executable = os.environ["EINC_ARM_PYTHON"]
"""
_RUN = """#!/bin/sh
# Runs Debian's Python for arm64, and in it this checkout; processes that it starts run the same way.
export EINC_ARM_PYTHON="{python}" PYTHONPATH="{root}:{root}/runtime:{packages}"
exec qemu-aarch64-static -L "{system}" "{system}/usr/bin/python{version}" "$@"
"""


def find_missing_tools() -> list[str]:
    """The programs that are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def make_root() -> Path:
    """The script that runs Python for arm64; makes the folder where it is missing, or was not finished."""
    if PYTHON.exists():
        return PYTHON
    shutil.rmtree(FOLDER, ignore_errors=True)
    PACKAGES.mkdir(parents=True)
    bootstrap = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", f"--include={LIBRARIES}", SUITE]
    subprocess.run([*bootstrap, str(SYSTEM)], check=True, stdout=subprocess.DEVNULL)
    for package in sorted((SYSTEM / "var/cache/apt/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(SYSTEM)], check=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    download += ["--only-binary=:all:", "--python-version", VERSION, "--implementation", "cp"]
    download += [word for name in PLATFORMS for word in ("--platform", name)]
    download += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(FOLDER / "wheels"), *WHEELS]
    subprocess.run(download, check=True)
    for wheel in sorted((FOLDER / "wheels").glob("*.whl")):
        shutil.unpack_archive(wheel, PACKAGES, "zip")
    (PACKAGES / "sitecustomize.py").write_text(_CUSTOMIZE)
    script = _RUN.format(python=PYTHON, root=ROOT, packages=PACKAGES, system=SYSTEM, version=VERSION)
    temporary = PYTHON.with_suffix(".new")
    temporary.write_text(script)
    temporary.chmod(0o755)
    temporary.rename(PYTHON)
    return PYTHON
