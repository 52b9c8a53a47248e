"""The processor that kernels compute on: what it can do, or less, as the environment variable EINC_PROCESSOR says.

A level is a set of instructions that many processors have: the levels that compilers know for x86-64, and two above
them; and for ARM, versions of the architecture. A level below the processor's own is for trying what users of other
processors get. Machine code of kernels, oneDNN, MKL and every choice between kernels keep to it; numpy and its OpenBLAS
have variables of their own (NPY_DISABLE_CPU_FEATURES, OPENBLAS_CORETYPE).
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from einc_runtime import environment
from einc_runtime.environment import PROCESSOR
from einc_runtime.errors import UsageFault
from einc_runtime.text import did_you_mean, escape_text

CPUINFO = Path("/proc/cpuinfo")
_CPUINFO_FIELDS = ("model name", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")
MAX_PROCESSOR_NAME = 60
"""Characters of a name that is shown in one line."""


@dataclass(frozen=True, slots=True)
class Level:
    """A set of instructions. `features` are what the processor must have, by LLVM's names; `cpu` is LLVM's name of a
    processor that has a part of them. `onednn` is what this library calls the level, on x86-64."""

    name: str
    cpu: str
    features: frozenset[str]
    onednn: int = 0


_V2 = frozenset({"cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_BF16 = _V4 | {"avx512bf16", "avx512vnni"}
_AMX = _BF16 | {"amx-bf16", "amx-int8", "amx-tile"}

X86_LEVELS = (
    Level("x86-64-v2", "x86-64-v2", _V2, 0x1),
    Level("x86-64-v3", "x86-64-v3", _V3, 0x7),
    Level("x86-64-v4", "x86-64-v4", _V4, 0x27),
    Level("x86-64-v4-bf16", "x86-64-v4", _BF16, 0xE7),
    Level("x86-64-v4-amx", "x86-64-v4", _AMX, 0xFEF),
)
"""From the fewest instructions to the most; each has those of the one before."""

_ARM_8 = frozenset({"fp-armv8", "neon"})
_ARM_8_2 = _ARM_8 | {"crc", "dotprod", "fullfp16", "lse", "rdm"}
_ARM_8_6 = _ARM_8_2 | {"bf16", "i8mm"}
_ARM_9 = _ARM_8_6 | {"sve", "sve2"}

ARM_LEVELS = (
    Level("armv8-a", "generic", _ARM_8),
    Level("armv8.2-a", "generic", _ARM_8_2),
    Level("armv8.6-a", "generic", _ARM_8_6),
    Level("armv9-a", "generic", _ARM_9),
)
"""The same for ARM: most phones and small boards; Neoverse N1; V1 without its longer vectors; N2, V2 and Grace."""

INSTRUCTION_LEVELS = (*X86_LEVELS, *ARM_LEVELS)


_FLAGS = {
    "abm": "lzcnt", "amx_bf16": "amx-bf16", "amx_fp16": "amx-fp16", "amx_int8": "amx-int8", "amx_tile": "amx-tile",
    "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "avx512_vnni": "avx512vnni", "bmi1": "bmi",
    "lahf_lm": "sahf", "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2",
}  # fmt: skip
"""Linux's names of instructions, where LLVM has others."""


_HWCAPS = (
    {"fp-armv8": 0, "neon": 1, "crc": 7, "lse": 8, "fullfp16": 10, "rdm": 12, "dotprod": 20, "sve": 22},
    {"sve2": 1, "i8mm": 13, "bf16": 14},
)
"""Bits of the two words in which Linux says what an ARM processor has (`arch/arm64/include/uapi/asm/hwcap.h`)."""

_AT_HWCAPS = (16, 26)
"""The keys of these words in a process's auxiliary vector."""

_SYSCTLS = {
    "neon": "neon", "fp-armv8": "floatingpoint", "crc": "armv8_crc32", "lse": "arm.FEAT_LSE", "rdm": "arm.FEAT_RDM",
    "fullfp16": "arm.FEAT_FP16", "dotprod": "arm.FEAT_DotProd", "i8mm": "arm.FEAT_I8MM", "bf16": "arm.FEAT_BF16",
}  # fmt: skip
"""What macOS calls them, below `hw.optional.`."""


_HALVING = frozenset({"znver4"})
"""Processors, by LLVM's names, that compute with registers of 512 bits in halves, one after the other."""


class Registers(NamedTuple):
    """How many f32 a register holds, and how many registers there are."""

    lanes: int
    number: int


@dataclass(frozen=True, slots=True)
class Processor:
    """LLVM's name of a processor, and its instructions by LLVM's names; `attributes` is what LLVM is told of them, and
    `level` what it was held to."""

    cpu: str
    features: frozenset[str]
    attributes: str = ""
    level: Level | None = None

    @property
    def converts_f16(self) -> bool:
        """Whether it converts 16-bit floats, and multiplies and adds at once."""
        return {"f16c", "fma"} <= self.features

    @property
    def has_wide_registers(self) -> bool:
        """Whether it has 32 registers of 512 bits."""
        return "avx512f" in self.features

    @property
    def registers(self) -> Registers:
        """Those for floats that machine code uses: of 512, 256, or 128 bits."""
        if self.has_wide_registers:
            return Registers(16, 32)
        return Registers(8, 16) if "avx2" in self.features else Registers(4, 32 if "neon" in self.features else 16)

    def choose_registers(self, sums: int) -> Registers:
        """`registers`, or those of half the length where two of these take as long as one of 512 bits, and hold so many
        sums with fewer lanes that are idle."""
        wide, half = self.registers, Registers(8, 32)
        fewer = -(-sums // half.lanes) % 2 == 1 and sums > wide.lanes
        return half if self.cpu in _HALVING and self.has_wide_registers and fewer else wide

    @property
    def multiplies_bf16(self) -> bool:
        """Whether it multiplies pairs of bf16, in registers of 512 bits."""
        return "avx512bf16" in self.features

    @property
    def multiplies_tiles(self) -> bool:
        """Whether it multiplies tiles of bf16, several times as fast as their pairs."""
        return "amx-bf16" in self.features

    @property
    def integer_products(self) -> str:
        """What it multiplies and adds up at once: `bytes`, four pairs of them in registers of 512 bits, of which one
        has no sign; `signed`, four pairs of bytes in registers of 128 bits; `pairs`, two pairs of integers of 16 bits
        in registers of 256 bits; or `words`, single integers of 32 bits."""
        if {"avx512f", "avx512vnni"} <= self.features:
            return "bytes"
        if "dotprod" in self.features:
            return "signed"
        return "pairs" if "avx2" in self.features else "words"


@cache
def find_processor() -> Processor:
    """The processor, held to the level of the environment.

    Raises UsageFault for a level that there is not, or that the processor does not have, and ImportError without
    llvmlite.
    """
    level = find_level()
    if level is not None:
        attributes = ",".join(f"+{name}" for name in sorted(level.features))
        return Processor(level.cpu, level.features, attributes, level)
    return read_processor()


def read_processor() -> Processor:
    """The processor as it is. Raises ImportError without llvmlite, and what LLVM raises where it does not know it."""
    import llvmlite.binding as llvm

    if platform.machine() in _ARM:
        names = read_arm_features()
        with contextlib.suppress(RuntimeError):  # LLVM does not ask every system
            names |= {name for name, has in llvm.get_host_cpu_features().items() if has}
        return Processor(llvm.get_host_cpu_name(), names, ",".join(f"+{name}" for name in sorted(names)))
    features = llvm.get_host_cpu_features()
    names = frozenset(name for name, has in features.items() if has)
    return Processor(llvm.get_host_cpu_name(), names, features.flatten())


def read_arm_features() -> frozenset[str]:
    """What Linux or macOS says of an ARM processor, by LLVM's names; nothing on other systems."""
    import ctypes

    library = ctypes.CDLL(None)
    read, ask = getattr(library, "getauxval", None), getattr(library, "sysctlbyname", None)
    if read is None:
        return frozenset(name for name in _SYSCTLS if ask is not None and _ask_macos(ask, _SYSCTLS[name]))
    read.restype, read.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    words = [read(key) for key in _AT_HWCAPS]
    return frozenset(name for word, bits in zip(words, _HWCAPS, strict=True) for name in bits if word >> bits[name] & 1)


def _ask_macos(ask: Callable[..., int], name: str) -> bool:
    """Whether an optional part of the processor is there; `ask` is `sysctlbyname`."""
    import ctypes

    answer, size = ctypes.c_int64(0), ctypes.c_size_t(8)  # older parts are answered in 4 bytes
    failed = ask(f"hw.optional.{name}".encode(), ctypes.byref(answer), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and answer.value != 0


@cache
def find_level() -> Level | None:
    """The level that the environment names; None if it names none. Raises UsageFault as `find_processor` does."""
    name = environment.read(PROCESSOR)
    if not name:
        return None
    usable = list_levels()
    known = {level.name: level for level in INSTRUCTION_LEVELS}
    names = ", ".join(level.name for level in usable)
    hint = f"leave it out, or set one of {names}" if usable else "leave it out: no level can be set on this processor"
    if name not in known:
        close = did_you_mean(name, known)
        raise UsageFault(
            f"there is no level of instructions '{escape_text(name, 40)}'",
            where=PROCESSOR,
            hint=f"{close} {hint}" if close else hint,
        )
    if known[name] not in usable:
        raise UsageFault(f"this processor does not have all instructions of {name}", where=PROCESSOR, hint=hint)
    return known[name]


def list_levels() -> tuple[Level, ...]:
    """The levels that this processor has."""
    is_arm = platform.machine() in _ARM
    if not is_arm and platform.machine() not in _X86:
        return ()
    try:
        features = read_processor().features
    except (ImportError, OSError, RuntimeError):
        features = read_arm_features() if is_arm else _read_flags()
    levels = ARM_LEVELS if is_arm else X86_LEVELS
    return tuple(level for level in levels if level.features <= features)


def _read_flags() -> frozenset[str]:
    """What Linux says of an x86 processor, by LLVM's names."""
    return frozenset(_FLAGS.get(flag, flag) for flag in read_cpuinfo().get("flags", "").split())


@cache
def find_instructions() -> frozenset[str]:
    """The instructions of an x86 processor on Linux, by LLVM's names, held to the level of the environment. LLVM need
    not be loaded for it. Raises UsageFault as `find_processor` does."""
    level = find_level()
    return _read_flags() if level is None else level.features


def name_processor() -> str:
    """What the processor calls itself, in at most 60 characters, and the level that it was held to."""
    named = read_cpuinfo().get("model name") or platform.processor() or platform.machine()
    printable = "".join(character for character in named if character.isprintable())
    name = " ".join(printable.split())[:MAX_PROCESSOR_NAME] or "unknown processor"
    level = find_level()
    return name if level is None else f"{name} as {level.name}"


def read_cpuinfo() -> Mapping[str, str]:
    """What the system says about its first processor; nothing where there is no such file."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            name, _, value = line.partition(":")
            if name.strip() in _CPUINFO_FIELDS:
                fields.setdefault(name.strip(), value.strip())
            if not line.strip():
                break
    return fields
