"""The functions of cupy that the driver calls exist with these arguments; errors where cupy or GPUs are missing."""

from __future__ import annotations

import builtins
import ctypes.util
import inspect
import re
import subprocess
import sys

import pytest

from einc_runtime.errors import MissingFault
from einc_runtime.execution.backends import count_visible_gpus
from einc_runtime.execution.cuda.cupy_driver import CupyDriver
from einc_runtime.execution.cuda.driver import Driver, DriverError
from einc_runtime.execution.cuda.hip_driver import HIP_CALLS, HipDriver
from einc_runtime.execution.cuda.runtime_driver import RuntimeDriver
from tests.support.driver_calls import DRIVER_CALLS

CONSTANTS = (
    "cudaDevAttrMultiProcessorCount", "eventDisableTiming", "memcpyDefault", "streamCaptureModeThreadLocal",
    "streamNonBlocking",
)  # fmt: skip


def runtime():
    return pytest.importorskip("cupy.cuda.runtime", reason="cupy is not installed")


def signature(function):
    """The names of the arguments that cupy's documentation line gives, and how many of them have defaults."""
    line = function.__doc__.splitlines()[0]
    inside = (
        line[line.index("(") + 1 : line.rindex(")")] if "->" not in line else line[line.index("(") + 1 :].split(")")[0]
    )
    arguments = [argument.strip() for argument in inside.split(",") if argument.strip()]
    return [argument.split("=")[0].split()[-1] for argument in arguments], sum(
        "=" in argument for argument in arguments
    )


@pytest.mark.parametrize("name", DRIVER_CALLS)
def test_cupy_takes_these_arguments(name):
    names, optional = signature(getattr(runtime(), name))
    assert len(names) - optional <= DRIVER_CALLS[name] <= len(names), names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memcpy2DAsync", ["dst", "dpitch", "src", "spitch", "width", "height", "kind", "stream"]),
        ("memcpyAsync", ["dst", "src", "size", "kind", "stream"]),
        ("memcpy2D", ["dst", "dpitch", "src", "spitch", "width", "height", "kind"]),
        ("memset", ["ptr", "value", "size"]),
        ("streamWaitEvent", ["stream", "event", "flags"]),
        ("eventRecord", ["event", "stream"]),
        ("graphLaunch", ["graphExec", "stream"]),
        ("graphUpload", ["graphExec", "stream"]),
        ("streamBeginCapture", ["stream", "mode"]),
        ("deviceCanAccessPeer", ["device", "peerDevice"]),
        ("deviceGetAttribute", ["attrib", "device"]),
        ("eventElapsedTime", ["start", "end"]),
        ("eventQuery", ["event"]),
        ("deviceGetPCIBusId", ["device"]),
    ],
)
def test_their_order_is_the_one_that_is_used(name, expected):
    assert signature(getattr(runtime(), name))[0] == expected


def test_constants_have_cudas_values():
    found = {name: int(getattr(runtime(), name)) for name in CONSTANTS}
    assert found == {
        "cudaDevAttrMultiProcessorCount": 16,
        "eventDisableTiming": 2,
        "memcpyDefault": 4,
        "streamCaptureModeThreadLocal": 1,
        "streamNonBlocking": 1,
    }


def test_only_checked_calls_and_constants_are_used():
    source = inspect.getsource(RuntimeDriver) + inspect.getsource(CupyDriver)
    called = {part.split('"')[1] for part in source.split("self._call(")[1:]}
    assert called == set(DRIVER_CALLS)
    read = {part.split(".")[0].split(",")[0].split(")")[0].split()[0] for part in source.split("self._runtime.")[1:]}
    assert read == set(CONSTANTS)


def list_methods(kind):
    methods = {name: f for base in kind.__mro__[::-1] for name, f in vars(base).items() if inspect.isfunction(f)}
    return {name: f for name, f in methods.items() if not name.startswith("_")}


def test_hip_has_all_calls_of_the_driver():
    launching = {"launchKernel", "moduleGetFunction", "moduleLoadData", "moduleUnload"}
    assert set(HIP_CALLS) == set(DRIVER_CALLS) | launching
    for name, count in DRIVER_CALLS.items():
        call = HIP_CALLS[name]
        length = name == "deviceGetPCIBusId"  # C is told how long the text may be
        assert len(call.arguments) == count + len(call.constants) + length, name


@pytest.mark.parametrize("kind", [CupyDriver, HipDriver])
def test_the_driver_has_the_whole_surface_and_nothing_else(kind):
    wanted = {name: f for name, f in vars(Driver).items() if inspect.isfunction(f) and not name.startswith("_")}
    offered = list_methods(kind)
    assert offered.keys() == wanted.keys()
    for name, function in wanted.items():
        assert list(inspect.signature(offered[name]).parameters) == list(inspect.signature(function).parameters), name


@pytest.mark.skipif(count_visible_gpus() > 0, reason="there is a GPU, and these calls would do something")
def test_cupy_accepts_the_types_of_all_arguments(monkeypatch):
    """Without a driver every call fails in CUDA, and not before it on the way in."""
    module = runtime()
    monkeypatch.setattr(CupyDriver, "__init__", lambda self: None)
    driver = CupyDriver()
    driver._runtime, driver._error = module, module.CUDARuntimeError
    calls = {
        "target": (0,), "use": (0,), "memory": (0,), "can_reach": (0, 1), "enable_peer": (0, 1),
        "synchronize": (0,), "allocate": (0, 1 << 40), "free": (0, 1 << 47),
        "allocate_host": (1 << 20,), "free_host": (1 << 47,), "fill_bytes": (0, 1 << 47, 0, 8),
        "copy": (0, 1 << 47, 64, 1 << 46, 64, 32, 2), "copy_async": (1 << 47, 64, 1 << 46, 64, 32, 2, 1 << 45),
        "create_stream": (0,), "destroy_stream": (1 << 45,), "destroy_event": (1 << 45,), "record": (1 << 45, 1 << 46),
        "wait": (1 << 45, 1 << 46), "wait_on_host": (1 << 45,), "elapsed_ms": (1 << 45, 1 << 46),
        "begin_capture": (1 << 45,), "end_capture": (1 << 45,), "instantiate": (1 << 45,),
        "destroy_graph": (1 << 45,), "destroy_instance": (1 << 45,), "upload": (1 << 45, 1 << 46),
        "launch": (1 << 45, 1 << 46),
    }  # fmt: skip
    offered = set(list_methods(CupyDriver))
    assert calls.keys() == offered - {"device_count", "create_event", "can_signal", "virtual_memory", "address"}
    for name, arguments in calls.items():
        with pytest.raises(DriverError) as caught:
            getattr(driver, name)(*arguments)
        assert caught.value.status > 0, name
    for name, arguments in {"memcpy2D": (1, 2, 3, 4, 5, 6, 4), "memcpy2DAsync": (1, 2, 3, 4, 5, 6, 4, 7)}.items():
        with pytest.raises(DriverError):
            driver._call(name, *arguments)
    with pytest.raises(DriverError):
        driver.create_event(0, timing=True)


def test_without_cupy_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.split(".")[0] == "cupy":
            raise ImportError("no cupy")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingFault) as caught:
        CupyDriver()
    assert caught.value.exit_code == 69
    assert re.search(r"install 'cupy-cuda1[23]x>=14.0' \S+ 'triton>=3.3'$", caught.value.hint)


@pytest.mark.skipif(count_visible_gpus() > 0, reason="there is a GPU")
def test_without_a_place_for_cupys_cache_it_says_so(monkeypatch):
    """Cupy makes a directory when it is imported, which fails where there is no home."""

    def importing(name, *arguments, real=builtins.__import__):
        if name == "cupy":
            raise PermissionError(13, "Permission denied", "/nonexistent")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(MissingFault, match="'/nonexistent'") as caught:
        CupyDriver()
    assert "CUPY_CACHE_DIR" in caught.value.render()


def test_without_a_driver_it_says_so():
    runtime()
    with pytest.raises(MissingFault) as caught:
        CupyDriver()
    assert caught.value.exit_code == 69
    assert "--backend cpu" in caught.value.hint


# Whether GPUs are visible


def test_no_device_file_is_no_gpu(tmp_path):
    assert count_visible_gpus(tmp_path, "no such library") == 0


def test_a_device_file_without_a_driver_is_no_gpu(tmp_path):
    (tmp_path / "nvidia0").touch()
    assert count_visible_gpus(tmp_path, "libnosuchdriver.so") == 0
    libc = ctypes.util.find_library("c")
    assert count_visible_gpus(tmp_path, libc) == 0  # a library, but none of CUDA's


def test_control_files_alone_are_no_gpu(tmp_path):
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-uvm").touch()
    assert count_visible_gpus(tmp_path, "libnosuchdriver.so") == 0


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_gpus_that_are_hidden(tmp_path, monkeypatch, hidden):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the driver is looked at"))
    assert count_visible_gpus(tmp_path) == 0


def test_a_driver_that_counts(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    class Library:
        def cuInit(self, flags):
            return 0

        def cuDeviceGetCount(self, where):
            where._obj.value = 4
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert count_visible_gpus(tmp_path) == 4


def test_looking_for_gpus_imports_no_cupy():
    code = "import sys; from einc_runtime.execution.backends import *; count_visible_gpus(); is_cupy_installed()\n"
    code += "assert 'cupy' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
