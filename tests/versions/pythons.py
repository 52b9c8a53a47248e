"""The test suite with newer versions of Python: `make test-pythons`, which needs root.

    python -m tests.versions.pythons trixie sid

Each argument is a release of Debian, whose Python is installed into a folder by debootstrap: at this time, 3.13 in
trixie and 3.14 in sid. The files of this checkout are copied there, and installed with the versions of constraints.txt.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"trixie": "python3.13-venv", "sid": "python3.14-venv"}
SETTINGS = ("etc/pip.conf", "etc/xdg/pip", "root/.config/pip", "etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")
"""What this machine has of these is copied, so that pip finds its index there as it does here."""

INSIDE = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec chroot "$1" /bin/sh -c '
    cd /srv/einc
    "$(ls /usr/bin/python3.*[0-9] | tail -n 1)" -m venv .venv
    .venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ./runtime --editable ".[dev]"
    .venv/bin/python --version
    exec .venv/bin/python -m pytest -q -n auto'
"""
"""In a namespace of its own, so that nothing stays mounted."""


def make_root(release: str, folder: Path) -> None:
    """A system of that release with its Python, a compiler and git."""
    include = f"--include={PACKAGES[release]},gcc,git,make,ca-certificates"
    subprocess.run(["debootstrap", "--variant=minbase", include, release, folder], check=True)


def copy_checkout(folder: Path) -> None:
    """The files that git has, and the settings of pip."""
    target = folder / "srv" / "einc"
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, target], check=True)
    for name in SETTINGS:
        source = Path("/") / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        elif source.exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)


def main() -> int:
    """Returns how many releases the suite fails on."""
    failures = 0
    for release in sys.argv[1:] or PACKAGES:
        folder = ROOT / "build" / release
        if not (folder / "usr" / "bin" / "git").exists():
            make_root(release, folder)
        copy_checkout(folder)
        done = subprocess.run(["unshare", "--mount", "/bin/sh", "-c", INSIDE, "sh", folder])
        failures += done.returncode != 0
    return failures


if __name__ == "__main__":
    sys.exit(min(1, main()))
