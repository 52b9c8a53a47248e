"""A folder with Debian's Python for arm64, and the packages that the tests need, in `build/arm`.

Nothing of it is installed: packages of Debian and wheels are unpacked. Making it needs root, as debootstrap does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "arm"
SYSTEM, PACKAGES, PYTHON = FOLDER / "system", FOLDER / "packages", FOLDER / "python"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
"""What distributions call qemu for programs of arm64; one of them is enough."""
SUITE, VERSION = "bookworm", "3.11"
"""Of Debian, and of its Python."""

LIBRARIES = "python3,python3-minimal,libgomp1,libstdc++6,libatomic1"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
WHEELS = (
    "click", "highspy", "hypothesis", "jinja2", "lapx", "lark", "llvmlite", "ml_dtypes", "msgpack", "msgspec", "numpy",
    "pytest", "pytest-xdist", "rich", "safetensors", "threadpoolctl", "tokenizers",
)  # fmt: skip
"""What einc needs, but for libraries that there are for x86-64 alone, and what these tests do."""

_CUSTOMIZE = """import os, sys
sys.executable = os.environ["EINC_ARM_PYTHON"]
"""
_RUN = """#!/bin/sh
# {contents}
# Runs Debian's Python for arm64, and in it this checkout; processes that it starts run the same way.
export EINC_ARM_PYTHON="{python}" PYTHONPATH="{root}:{root}/runtime:{packages}"
exec {emulator} -L "{system}" "{system}/usr/bin/python{version}" "$@"
"""


def find_emulator() -> str | None:
    """The path of qemu, or None."""
    return next((path for path in map(shutil.which, EMULATORS) if path), None)


def list_missing() -> list[str]:
    """What is needed and not there, each with how to have it."""
    missing = []
    if find_emulator() is None:
        missing.append(f"{' or '.join(EMULATORS)}: apt-get install qemu-user-static")
    if has_root():
        return missing
    if shutil.which("debootstrap") is None:
        missing.append("debootstrap, which downloads Debian's packages: apt-get install debootstrap")
    if shutil.which("dpkg") is None:
        missing.append("dpkg, which unpacks them: this needs Debian, or what is made of it")
    if os.geteuid() != 0:
        missing.append(f"root, for debootstrap: it makes {FOLDER.relative_to(ROOT)}, and later runs need no root")
    return missing


def has_root() -> bool:
    """Whether the folder is there, and made of what this file says now."""
    return PYTHON.exists() and name_contents() in PYTHON.read_text()


def name_contents() -> str:
    """Another text for other packages."""
    return hashlib.sha256(repr((SUITE, VERSION, LIBRARIES, WHEELS)).encode()).hexdigest()


def make_root() -> Path:
    """The script that runs Python for arm64; makes the folder where it is missing, unfinished or of other packages."""
    if has_root():
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
    script = _RUN.format(
        contents=name_contents(),
        emulator=find_emulator(),
        python=PYTHON,
        root=ROOT,
        packages=PACKAGES,
        system=SYSTEM,
        version=VERSION,
    )
    temporary = PYTHON.with_suffix(".new")
    temporary.write_text(script)
    temporary.chmod(0o755)
    temporary.rename(PYTHON)
    return PYTHON
