"""Hints at packages are commands that install them into this environment, however einc was installed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig

import pytest

from einc_runtime import installing

METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: 7
Requires-Dist: alpha>=1
Requires-Dist: beta; python_version < '4'
Provides-Extra: serve
Requires-Dist: gamma>=2,<3; extra == 'serve'
Requires-Dist: delta ; extra == "serve"
Provides-Extra: server
Requires-Dist: epsilon; extra == 'server'
Provides-Extra: empty
"""
PROJECT = """\
[project]
name = "{name}"
[project.optional-dependencies]
serve = ["zeta>=4"]
"""


@pytest.fixture(autouse=True)
def made_up(tmp_path, monkeypatch):
    """Names that nothing has, and a module that is in no checkout, until a test makes them."""
    monkeypatch.setattr(installing, "DISTRIBUTIONS", ("made-up", "made-up-runtime"))
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "top" / "runtime" / "einc_runtime" / "installing.py"))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes what a tool writes that installs a distribution."""

    def write(name="made-up", installer="pip\n"):
        folder = tmp_path / "site" / f"{name.replace('-', '_')}-7.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(METADATA.format(name=name))
        if installer is not None:
            (folder / "INSTALLER").write_text(installer)
        monkeypatch.syspath_prepend(tmp_path / "site")

    return write


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Makes an environment with these tools, as one that this interpreter is in. Returns the interpreter's path."""

    def make(*commands, pip=True, venv=True, name="venv"):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        for command in ("python", *commands):
            (folder / command).write_text(f"#!{sys.executable}\nimport json, sys; print(json.dumps(sys.argv))\n")
            (folder / command).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        monkeypatch.setattr(sys, "base_prefix", "/elsewhere" if venv else sys.prefix)
        monkeypatch.setattr(installing, "find_spec", {"pip": pip or None}.__getitem__)
        monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.__getitem__)
        return str(folder / "python")

    return make


@pytest.mark.parametrize("name", ["made-up", "made-up-runtime"])
def test_the_packages_of_an_extra_are_those_of_the_installation(install, environment, name):
    install(name)
    environment("pip")
    assert installing.suggest_extra("serve") == "pip install 'gamma>=2,<3' delta"
    assert installing.suggest_extra("server") == "pip install epsilon"
    assert installing.suggest_extra("serve", only="del") == "pip install delta"


def test_an_extra_of_the_other_distribution_is_that_of_its_installation(install, environment, tmp_path):
    install("made-up-runtime")
    environment("pip")
    (tmp_path / "top").mkdir()
    project = PROJECT.format(name="made-up").replace('["zeta>=4"]', '["made-up-runtime[server]", "zeta>=4"]')
    (tmp_path / "top" / "pyproject.toml").write_text(project)
    assert installing.suggest_extra("serve") == "pip install epsilon 'zeta>=4'"


@pytest.mark.parametrize("folder", ["top", "top/runtime"])
def test_in_a_checkout_they_are_those_of_its_files(environment, tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "pyproject.toml").write_text(PROJECT.format(name="made-up"))
    environment("pip")
    assert installing.suggest_extra("serve") == "pip install 'zeta>=4'"


def test_a_project_of_somebody_else_is_not_asked(environment, tmp_path, install):
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "pyproject.toml").write_text(PROJECT.format(name="theirs"))
    environment("pip")
    said = "install the packages of the extra 'serve', which the file pyproject.toml of einc lists"
    assert installing.suggest_extra("serve") == said
    install()
    assert installing.suggest_extra("serve").startswith("pip install 'gamma")
    assert "extra 'empty'" in installing.suggest_extra("empty")


def test_pip_is_that_of_this_interpreter(environment, tmp_path, monkeypatch):
    python = environment("pip")
    assert installing.suggest_packages("a>1", "b") == "pip install 'a>1' b"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "pip").touch(0o755)
    for path in (f"{foreign}:{os.environ['PATH']}", str(foreign), str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        assert installing.suggest_packages("a>1", "b") == f"{python} -m pip install 'a>1' b"


def test_pip_on_the_path_may_belong_to_another_interpreter_of_the_same_folder(environment):
    python = environment("pip", venv=False)
    assert installing.suggest_packages("a") == f"{python} -m pip install a"


def test_a_system_that_forbids_installing_was_overruled_before(environment, tmp_path, install):
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    python = environment("uv", pip=True, venv=False)
    assert installing.suggest_packages("a") == f"{python} -m pip install --break-system-packages a"
    install(installer="uv")
    assert installing.suggest_packages("a") == f"uv pip install --python {python} --break-system-packages a"


def test_in_a_virtual_environment_nothing_is_overruled(environment, tmp_path):
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    environment("pip")
    assert installing.suggest_packages("a") == "pip install a"


@pytest.mark.parametrize(
    ("installer", "pip", "commands", "expected"),
    [
        ("uv", False, ["uv"], "uv pip install --python {0} a"),
        ("uv", True, ["uv", "pip"], "uv pip install --python {0} a"),
        ("uv", True, ["pip"], "pip install a"),  # as in an image into which the environment was copied
        ("uv", False, [], "{0} -m ensurepip && {0} -m pip install a"),
        ("pip", True, ["uv", "pip"], "pip install a"),
        ("pdm", False, ["uv"], "uv pip install --python {0} a"),
        (None, True, ["uv"], "{0} -m pip install a"),
    ],
)
def test_the_tool_is_that_of_the_installation_where_it_is_there(
    environment, install, installer, pip, commands, expected
):
    install(installer=installer)
    python = environment(*commands, pip=pip)
    assert installing.suggest_packages("a") == expected.format(python)


def test_a_shell_reads_what_is_meant(environment):
    python = environment("uv", name='it\'s a "folder" $HOME')
    for words in (installing.suggest_packages("a>=1,<2", "b; python_version > '3'"),):
        assert shlex.split(words) == [python, "-m", "pip", "install", "a>=1,<2", "b; python_version > '3'"]
        done = subprocess.run(["/bin/sh", "-c", words], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == shlex.split(words)


def test_windows_has_double_quotes(environment, monkeypatch):
    environment("pip")
    monkeypatch.setattr(installing.os, "name", "nt")
    assert installing._quote(["pip", "install", "a>=1", "b", r"C:\x y\python.exe"]) == (
        r'pip install "a>=1" b "C:\x y\python.exe"'
    )


@pytest.mark.parametrize(("version", "cuda"), [(0, 12), (11080, 12), (12090, 12), (13000, 13), (13010, 13)])
def test_packages_for_gpus_fit_the_driver(monkeypatch, environment, install, version, cuda):
    class Driver:
        def cuDriverGetVersion(self, target):
            target._obj.value = version

    monkeypatch.setattr(installing.ctypes, "CDLL", lambda name: Driver())
    assert installing.find_cuda() == cuda
    assert f"extra 'cuda{cuda}'" in installing.suggest_cuda()
    install(f"cupy-cuda{25 - cuda}x")  # what is to work with cupy must be for its CUDA
    assert installing.find_cuda() == 25 - cuda


def test_without_a_driver_packages_are_for_cuda_12():
    assert installing.find_cuda("no such library") == 12
    assert installing.find_cuda("libc.so.6") == 12  # a library that is no driver
