"""What an installation consists of: two packages, their data, and no more dependencies than they declare.

Both wheels are built from the checkout, without a network. They are installed into one folder, as the compiler needs
the runtime, and the runtime into another one, alone. Programs are run with the standard library, such a folder, and the
dependencies that the wheels declare, and with nothing else.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from einc_runtime.version import VERSION

ROOT = Path(__file__).parents[2]
ACCELERATORS = ("llvmlite", "onednn-cpu-gomp")
"""Dependencies without which all works, more slowly: there are platforms that have no wheels of them."""


@dataclass(frozen=True)
class Installation:
    """Wheels in a folder, and beside it links to what they depend on."""

    packages: Path
    dependencies: Path

    def start(self, path: Sequence[str], code: str, cwd: Path, arguments: Sequence[str]) -> str:
        """Runs Python code with `path` in front; `-I` and `-S` keep this environment's packages away."""
        path = [*path, str(self.packages), str(self.dependencies)]
        code = f"import sys; sys.path[:0] = {path!r}; {code}"
        command = [sys.executable, "-I", "-S", "-c", code, *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, code: str, cwd: Path, *path: str) -> str:
        return self.start(path, code, cwd, ())

    def command(self, package: str, *arguments: object, cwd: Path) -> str:
        code = f"from {package}.cli.main import main; sys.exit(main())"
        return self.start((), code, cwd, [str(argument) for argument in arguments])


def install(folder: Path, *wheels: Path) -> Installation:
    packages, dependencies = folder / "packages", folder / "dependencies"
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", packages]
    subprocess.run([*command, *options, *wheels], check=True, timeout=300)
    dependencies.mkdir()
    required = {
        name for metadata in importlib.metadata.distributions(path=[str(packages)]) for name in list_required(metadata)
    }
    for name in sorted(required - {"einc-runtime"}):
        if name.startswith(ACCELERATORS):
            continue
        link(name, dependencies)
        if name == "jinja2":  # of what the others need, only this is needed for more than colours
            for further in list_required(importlib.metadata.distribution(name)):
                link(further, dependencies)
    return Installation(packages, dependencies)


def list_required(distribution: importlib.metadata.Distribution) -> list[str]:
    """The names of the distributions that one needs, without its extras."""
    needed = [requirement for requirement in distribution.requires or () if "extra ==" not in requirement]
    return [re.split(r"[<>=!~;\s\[]", requirement, maxsplit=1)[0] for requirement in needed]


def build(kind: str, project: Path, folder: Path) -> Path:
    """Builds a wheel as pip does, which takes a second more."""
    folder.mkdir()
    code = f"import os; os.chdir({str(project)!r}); from hatchling import build as b; b.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=folder)
    (wheel,) = folder.iterdir()
    return wheel


def link(name: str, folder: Path) -> None:
    """Links to the packages of a distribution of this environment."""
    distribution = importlib.metadata.distribution(name)
    for top in sorted({file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}):
        if not top.endswith(".dist-info") and top != "__pycache__":
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """That of the compiler, and that of the runtime."""
    folder = tmp_path_factory.mktemp("wheels")
    return build("wheel", ROOT, folder / "einc"), build("wheel", ROOT / "runtime", folder / "einc-runtime")


@pytest.fixture(scope="module")
def both(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(tmp_path_factory.mktemp("both"), *wheels)


@pytest.fixture(scope="module")
def alone(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(tmp_path_factory.mktemp("alone"), wheels[1])


NAMES = "import json, pkgutil; print(json.dumps(sorted(m.name for m in pkgutil.iter_modules([{!r}]))))"


def test_each_wheel_has_its_packages_and_no_others(both: Installation, alone: Installation, tmp_path: Path) -> None:
    for installation, names in ((both, {"einc", "einc_runtime"}), (alone, {"einc_runtime"})):
        assert {entry.name for entry in installation.packages.iterdir() if entry.suffix != ".dist-info"} - {
            "bin"
        } == names
        listed = installation.python(NAMES.format(str(installation.packages)), tmp_path)
        assert set(json.loads(listed)) == names
        scripts = {entry.name for entry in (installation.packages / "bin").iterdir()}
        assert scripts == {name.replace("_", "-") for name in names}


def test_the_runtime_runs_and_verifies_a_plan_that_was_compiled_elsewhere(
    both: Installation, alone: Installation, tmp_path: Path
) -> None:
    """The compiler comes from its wheel too: it finds its grammar, its machines and its models there."""
    both.command("einc", "models", "copy", "ffn", cwd=tmp_path)
    dims = re.findall(r"^(?:param|dim) (\w+)", (tmp_path / "ffn.ein").read_text(), re.MULTILINE)
    small = [option for name in dims for option in ("-D", f"{name}=8")]
    both.command("einc", "compile", "ffn.ein", "-m", "dgx-a100", "--devices", 2, *small, "-o", "ffn.bin", cwd=tmp_path)

    both.command("einc", "explain", "ffn.bin", "--html", "ffn.html", cwd=tmp_path)  # templates, scripts and styles
    assert "window.eincTimeline" in (tmp_path / "ffn.html").read_text()

    alone.python("import importlib.util as u; assert u.find_spec('einc') is None", tmp_path)
    verified = json.loads(alone.command("einc_runtime", "verify", "ffn.bin", "--json", cwd=tmp_path))
    assert verified["valid"]
    described = json.loads(alone.command("einc_runtime", "describe", "ffn.bin", "--json", cwd=tmp_path))
    assert described["tasks"] == verified["tasks"]
    loads = ("--inputs", "rand:0", "--weights", "rand:1")
    ran = json.loads(alone.command("einc_runtime", "run", "ffn.bin", *loads, "-o", "y.npy", "--json", cwd=tmp_path))
    assert list(ran["outputs"]) == [tensor["name"] for tensor in described["outputs"]]
    both.command("einc", "run", "ffn.bin", *loads, "--expect", "y.npy", "--check", cwd=tmp_path)


def test_a_server_imports_what_it_needs_from_the_package_itself(alone: Installation, tmp_path: Path) -> None:
    code = "import einc_runtime; print(sorted({'click', 'numpy', 'msgspec'} & set(sys.modules)), *einc_runtime.__all__)"
    heavy, *names = alone.python(code, tmp_path).split()
    assert heavy == "[]"
    alone.python(f"from einc_runtime import {', '.join(names)}", tmp_path)


def test_packages_of_the_user_stay_visible(both: Installation, tmp_path: Path) -> None:
    names = ("models", "runtime", "grammars")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text("")  # a namespace package, which gives way to all others
    code = f"import einc.api, {', '.join(f'{name}.own' for name in names)}; print(models.__path__[0])"
    assert both.python(code, tmp_path, str(tmp_path)).strip() == str(tmp_path / "models")
    assert "ffn" in both.command("einc", "models", "list", cwd=tmp_path)


def test_no_file_is_in_both_wheels(wheels: tuple[Path, Path]) -> None:
    """So that installing or removing one of them leaves the other as it is."""
    names = [{name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} for wheel in wheels]
    packages = [{name.partition("/")[0] for name in wheel if ".data/" not in name} for wheel in names]
    assert packages == [{"einc"}, {"einc_runtime"}]
    scripts = [[name.rpartition("/")[2] for name in wheel if ".data/" in name] for wheel in names]
    assert scripts == [["einc"], ["einc-runtime"]]


@pytest.mark.parametrize(("project", "package"), [(ROOT, "einc"), (ROOT / "runtime", "einc_runtime")])
def test_an_editable_installation_has_the_same_package(project: Path, package: str, tmp_path: Path) -> None:
    """As `make` installs it: the finder that is written down names a package of the checkout, and no folder."""
    wheel = build("editable", project, tmp_path / "wheels")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "x"], check=True, timeout=300)
    (finder,) = (tmp_path / "x").glob("_editable_impl_*.py")
    mapped = dict(re.findall(r"map_module\('(\w+)', '([^']+)'\)", finder.read_text()))
    assert set(mapped) == {package}
    assert os.path.commonpath([ROOT, mapped[package]]) == str(ROOT)
    assert Path(mapped[package]).is_file()
    assert finder.with_suffix(".pth").read_text().strip() == f"import {finder.stem}"


def test_the_compiler_needs_the_runtime_of_its_version() -> None:
    compiler, runtime = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "runtime")
    )
    assert f"einc-runtime=={VERSION}" in compiler["dependencies"]
    for extra in runtime["optional-dependencies"].keys() - {"generate"}:
        assert compiler["optional-dependencies"][extra] == [f"einc-runtime[{extra}]"]


def test_what_is_fast_is_installed_by_default_wherever_there_are_wheels_of_it() -> None:
    project = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text())["project"]
    results = {name: line for line in project["dependencies"] for name in ACCELERATORS if line.startswith(name)}
    assert set(results) == set(ACCELERATORS)
    from packaging.requirements import Requirement

    places = {("linux", "x86_64"): 2, ("linux", "aarch64"): 1, ("darwin", "arm64"): 1, ("darwin", "x86_64"): 0,
              ("win32", "AMD64"): 1, ("win32", "ARM64"): 0, ("linux", "riscv64"): 0}  # fmt: skip
    for (system, machine), count in places.items():
        environment = {"sys_platform": system, "platform_machine": machine, "python_version": "3.11"}
        markers = [Requirement(line).marker for line in results.values()]
        assert sum(marker.evaluate(environment) for marker in markers if marker is not None) == count, (system, machine)


def test_the_wheels_are_for_every_system(wheels: tuple[Path, Path]) -> None:
    """They hold Python alone, so that macOS and ARM install them."""
    assert all(wheel.name.endswith("-py3-none-any.whl") for wheel in wheels)
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        assert not [name for name in names if name.endswith((".so", ".dylib", ".pyd"))]


def test_the_two_commands_differ_only_in_their_names() -> None:
    compiler, runtime = (
        (ROOT / "scripts" / "einc").read_text(),
        (ROOT / "runtime" / "scripts" / "einc-runtime").read_text(),
    )
    assert compiler.replace("einc", "NAME") == runtime.replace("einc-runtime", "NAME").replace("einc_runtime", "NAME")
    assert compiler.startswith("#!python\n")  # which installers replace by the interpreter
