"""What is missing can be installed by the command in the hint, pasted into a shell, however einc came here: `make
test-hints`.

Every environment is fresh. All hints are made to appear; then each command is run as it is printed, and what led to the
hint is done again: it works, or comes further, to another hint.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.hint_cases import CASES, HintCase

ROOT = Path(__file__).parents[2]


@dataclass
class Installation:
    """An environment with einc. `variables` are those of a user's shell, with few folders on the path."""

    python: Path
    variables: dict[str, str]
    module: str = "einc"
    large: tuple[str, ...] = ()
    """The large packages that are installed here."""
    plan: Path = Path()

    def run(self, case: HintCase) -> tuple[int, str]:
        """The exit code and what was printed; a server ends when it has started."""
        names = {"PYTHON": self.python, "PLAN": self.plan, "MODELS": ROOT / "models", "OUT": self.plan.parent}
        words = [re.sub("PYTHON|PLAN|MODELS|OUT", lambda match: str(names[match[0]]), word) for word in case.words]
        words = [str(self.python), "-m", self.module, *words[1:]] if words[0] == "EINC" else words
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.plan.parent,
            env=self.variables | case.variables,
        )  # fmt: skip
        said, ended = "", False
        for line in process.stdout:
            said += line
            if line.startswith("einc: serving"):
                process.send_signal(signal.SIGTERM)
                ended = True
        code = process.wait()
        return 0 if ended and code == 128 + signal.SIGTERM else code, said

    def paste(self, command: str) -> str:
        """Runs a command in a shell of the user. Returns what it prints."""
        return do("/bin/sh", "-c", command, variables=self.variables)


def do(*words: object, variables: dict[str, str] | None = None) -> str:
    """Runs a command, which must work. Returns what it prints."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=variables, cwd=ROOT)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def read_hint(said: str) -> str | None:
    """The command in what was printed: to the end of the line, after what leads to it."""
    lines = [line for line in said.splitlines() if re.search(r" (hint|not used without cupy): ", line)]
    return lines[-1].rpartition(": ")[2] if lines else None


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "ffn.bin"
    small = [word for name in ("tokens", "d_model", "d_ff") for word in ("-D", f"{name}=8")]
    do(sys.executable, "-m", "einc", "compile", "models/ffn.ein", "-m", "host", "--devices", 2, *small, "-o", path)
    return path


def copy_checkout(folder: Path) -> Path:
    """The files that git has or would have, in a folder with a name that shells take apart."""
    copy = folder / "the user's $checkout"
    for name in filter(None, do("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")):
        if not name.startswith(("tests/", "docs/")) and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def make_environment(folder: Path, name: str = "venv") -> Path:
    """A virtual environment with nothing but pip; its interpreter."""
    do(sys.executable, "-m", "venv", folder / name)
    return folder / name / "bin" / "python"


def pip(python: Path, *words: object) -> None:
    do(python, "-m", "pip", "install", *words)


def restrict(*folders: Path) -> dict[str, str]:
    """The variables of this process, with nothing on the path but these folders."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"PATH": os.pathsep.join(map(str, folders))}


def install_checkout(folder: Path) -> Installation:
    """`pip install ./runtime .`, in an environment that is activated; then the checkout is removed."""
    copy, python = copy_checkout(folder), make_environment(folder)
    pip(python, copy / "runtime", copy)
    shutil.rmtree(copy)
    return Installation(python, restrict(python.parent), large=("triton",))


def install_editable(folder: Path) -> Installation:
    """`pip install -e ./runtime -e .`, in an environment that is not activated, and whose path must be quoted."""
    copy, python = copy_checkout(folder), make_environment(folder, "it's a venv")
    pip(python, "--editable", copy / "runtime", "--editable", copy)
    return Installation(python, restrict(folder))


def install_wheel(folder: Path) -> Installation:
    """Both wheels, which are removed after they were installed. Another pip is on the path."""
    copy, python, foreign = copy_checkout(folder), make_environment(folder), make_environment(folder, "foreign")
    do(python, "-m", "pip", "wheel", "--no-deps", "-w", folder / "wheels", copy, copy / "runtime")
    pip(python, *(folder / "wheels").iterdir())
    shutil.rmtree(folder / "wheels")
    shutil.rmtree(copy)
    return Installation(python, restrict(foreign.parent))


def install_runtime(folder: Path) -> Installation:
    """`pip install ./runtime`, which has no compiler."""
    copy, python = copy_checkout(folder), make_environment(folder)
    pip(python, copy / "runtime")
    shutil.rmtree(copy)
    return Installation(python, restrict(python.parent), "einc_runtime")


def install_nothing(folder: Path) -> Installation:
    """A checkout on the path of the interpreter, and only what it needs is installed."""
    copy, python = copy_checkout(folder), make_environment(folder)
    pip(python, copy / "runtime", copy)
    do(python, "-m", "pip", "uninstall", "--yes", "einc", "einc-runtime")
    path = os.pathsep.join([str(copy), str(copy / "runtime")])
    return Installation(python, restrict(python.parent) | {"PYTHONPATH": path})


def install_with_uv(folder: Path) -> Installation:
    """`uv pip install ./runtime .`, into an environment of uv, which has no pip."""
    copy = copy_checkout(folder)
    pip(sys.executable, "--target", folder / "tools", "uv")
    uv, python = folder / "tools" / "bin" / "uv", folder / "venv" / "bin" / "python"
    do(uv, "venv", "--python", sys.executable, folder / "venv")
    do(uv, "pip", "install", "--python", python, copy / "runtime", copy)
    shutil.rmtree(copy)
    return Installation(python, restrict(uv.parent))


WAYS: dict[Callable[[Path], Installation], tuple[str, int]] = {
    install_checkout: ("pip install ", 1),
    install_editable: ("'{0}' -m pip install ", -1),
    install_wheel: ("{0} -m pip install ", 1),
    install_runtime: ("pip install ", -1),
    install_nothing: ("pip install ", 1),
    install_with_uv: ("uv pip install --python {0} ", -1),
}
"""How einc came here, how the commands in hints begin then, and whether they are followed in their order or backwards:
mpi4py may come with MPICH, or before it."""


@pytest.mark.parametrize("install", WAYS, ids=lambda install: install.__name__)
def test_every_hint_works_where_it_is_pasted(install, plan, tmp_path):
    installation = install(tmp_path)
    installation.plan = Path(shutil.copy(plan, tmp_path))
    installation.variables["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    begin, step = WAYS[install]
    begin = begin.format(str(installation.python).replace("'", "'\"'\"'"))
    cases = [case for case in CASES if case.compiler in (None, installation.module == "einc")][::step]
    first: list[str] = []
    for case in cases:
        code, said = installation.run(case)
        hint = read_hint(said)
        assert hint is not None, (case, said)
        assert hint.startswith(begin), (case, said)
        assert code != 0 or "not used without cupy" in said, (case, said)
        print(f"{case.file}: {hint}")
        first.append(hint)
    would = {hint: installation.paste(f"{hint} --dry-run") for hint in dict.fromkeys(first)}
    for case, hint in zip(cases, first, strict=True):
        if case.large and case.large not in installation.large:
            assert re.search(rf"(?is)would install .*{case.large}", would[hint]), would[hint]
        else:
            follow(installation, case, hint)


def follow(installation: Installation, case: HintCase, hint: str | None) -> None:
    """Does what a hint says, and what the next one says, until the command works."""
    seen = set()
    code, said = 1, ""
    while hint is not None:
        assert hint not in seen, said
        seen.add(hint)
        installation.paste(hint)
        code, said = installation.run(case)
        hint = read_hint(said)
    assert code == 0, (case, code, said)
    print(f"{case.file}: works after {len(seen)} commands")
