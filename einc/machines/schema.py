"""The form of a machine file: its records, and one clear error for whatever does not have that form.

Machine files are untrusted. `msgspec` checks types and bounds against the records below; what depends on the number of
sites is checked by `load.py` and `rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from einc.errors import MachineError
from einc.machines.gpu import GpuRates
from einc_runtime.plan.element_types import DTypeName
from einc_runtime.strict_json import describe_json, parse_json
from einc_runtime.text import escape_text

# Limits of machine files, which may be hostile.
MAX_MACHINE_TEXT = 32 * 2**20
MAX_SITES = 1024
MAX_RESOURCES = 100_000
MAX_RULES = 1000
MAX_PRINTED_NAME = 100
MAX_KERNELS = 200
MAX_GPUS = 16

Rate = Annotated[float, Meta(ge=1e-9, le=1e15)]
"""GB/s: above zero, and of a size that no arithmetic on it overflows."""
Peak = Annotated[float, Meta(ge=1.0, le=1e30)]
Latency = Annotated[float, Meta(ge=0.0, le=1e9)]
SiteNumber = Annotated[int, Meta(ge=0, lt=MAX_SITES)]
SiteNumbers = Annotated[list[SiteNumber], Meta(max_length=MAX_SITES)]
Pairs = list[tuple[SiteNumber, SiteNumber]]

TaskName = Literal[
    "contract", "attention", "map", "reduce", "softmax", "rmsnorm", "layernorm", "rope", "topk",
    "reshape", "index", "append", "quantized_contract", "dequantize",
    "rounded_contract", "expert_matmul", "recurrence",
    "aggregate", "aggregate_logsumexp", "aggregate_topk", "copy", "transfer",
]  # fmt: skip
"""The kernels of the runtime, and the other tasks of a plan that take time."""


class FilePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in a machine file."""


class PeakRates(FilePart, frozen=True):
    """FLOP/s by the name of an element type."""

    f16: Peak | UnsetType = UNSET
    bf16: Peak | UnsetType = UNSET
    f32: Peak | UnsetType = UNSET
    f64: Peak | UnsetType = UNSET
    i32: Peak | UnsetType = UNSET
    i64: Peak | UnsetType = UNSET
    f8: Peak | UnsetType = UNSET
    f4: Peak | UnsetType = UNSET
    i8: Peak | UnsetType = UNSET
    bool: Peak | UnsetType = UNSET


class KernelEntry(FilePart, frozen=True):
    """What was measured of a kind of task: microseconds for each, and the rates of its operations and of its bytes.

    Without `dtype` it holds for every dtype that has no entry of its own.
    """

    task: TaskName
    dtype: DTypeName | UnsetType = UNSET
    us: Latency = 0.0
    flops: Peak | UnsetType = UNSET
    gbs: Rate | UnsetType = UNSET


class SiteEntry(FilePart, frozen=True):
    """One entry of the list `sites`. `gpu` names rates: those of the file's `gpus`, or those of a GPU of the catalogue.

    What a GPU of the catalogue has by its row may be left out.
    """

    hbm_gbs: Rate | UnsetType = UNSET
    memory_bytes: Annotated[int, Meta(ge=1, le=2**62)] | UnsetType = UNSET
    flops: PeakRates | UnsetType = UNSET
    kernels: Annotated[list[KernelEntry], Meta(max_length=MAX_KERNELS)] = []
    gpu: str | UnsetType = UNSET


class RepeatedSite(SiteEntry, frozen=True):
    """`sites` as one object, which stands for `count` sites that are all alike."""

    count: Annotated[int, Meta(ge=1, le=MAX_SITES)] | UnsetType = UNSET


class ResourceEntry(FilePart, frozen=True):
    """One entry of the list `resources`. `gbs` is what it sustains, `peak_gbs` its maker's figure, if more."""

    name: str
    gbs: Rate
    pairs: Pairs
    peak_gbs: Rate | UnsetType = UNSET


class SwitchRule(FilePart, frozen=True, tag_field="kind", tag="switch"):
    """Two resources for each site, egress and ingress (`"NAME out 3"`, `"NAME in 3"`), over all pairs among `sites`."""

    name: str
    gbs: Rate
    sites: SiteNumbers | UnsetType = UNSET  # all
    peak_gbs: Rate | UnsetType = UNSET


class LinksRule(FilePart, frozen=True, tag_field="kind", tag="links"):
    """For each of the unordered pairs in `between`, one resource per direction (`"NAME 0>1"`)."""

    name: str
    gbs: Rate
    between: Pairs
    peak_gbs: Rate | UnsetType = UNSET


class SharedRule(FilePart, frozen=True, tag_field="kind", tag="shared"):
    """One resource for all its pairs, both directions together. `pairs` lists unordered pairs; `"rest"` stands for all
    pairs that no resource before it lists."""

    name: str
    gbs: Rate
    pairs: Pairs | Literal["rest"]
    peak_gbs: Rate | UnsetType = UNSET


class NetworkRule(FilePart, frozen=True, tag_field="kind", tag="network"):
    """An egress and an ingress resource for each group of sites, or for each site, over the pairs that leave its group
    or come into it.

    With `spine_gbs` the network is rail-optimized: the sites at one place of their groups share a leaf switch (a rail),
    and transfers between rails cross an egress and an ingress of their leaf switches too (`"NAME spine out 3"`), which
    have this rate. Zero stands for a network without a spine.
    """

    name: str
    gbs: Rate
    groups: Annotated[list[SiteNumbers], Meta(max_length=MAX_SITES)]
    per: Literal["group", "site"] = "group"
    spine_gbs: Annotated[float, Meta(ge=0.0, le=1e15)] | UnsetType = UNSET


Rule = SwitchRule | LinksRule | SharedRule | NetworkRule


class LatencyEntry(FilePart, frozen=True):
    """Microseconds before the first byte of a transfer, and of the launch of a kernel."""

    transfer: Latency = 0.0
    kernel: Latency = 0.0


class MachineFile(FilePart, frozen=True):
    """The whole file."""

    name: str
    sites: Annotated[list[SiteEntry], Meta(max_length=MAX_SITES)] | RepeatedSite
    resources: Annotated[list[ResourceEntry], Meta(max_length=MAX_RESOURCES)] = []
    rules: Annotated[list[Rule], Meta(max_length=MAX_RULES)] = []
    latency_us: LatencyEntry = LatencyEntry()
    cores: Annotated[int, Meta(ge=1, le=MAX_SITES)] | UnsetType = UNSET
    measured: str = ""
    gpus: Annotated[dict[str, GpuRates], Meta(max_length=MAX_GPUS)] = {}


def decode_machine_file(text: str) -> MachineFile:
    """The records of a text. Raises MachineError, which names the place of the first mistake."""
    if len(text) > MAX_MACHINE_TEXT:
        raise MachineError(f"the machine file is larger than {MAX_MACHINE_TEXT} characters")
    try:
        tree = parse_json(text)
    except ValueError as error:
        raise MachineError(str(error)) from None
    try:
        file = msgspec.convert(tree, MachineFile)
    except msgspec.ValidationError as error:
        raise _describe_mistake(error, tree) from None
    except UnicodeEncodeError:
        raise MachineError("a field has a name that is no text: half of a pair of surrogates") from None
    _check_name(file.name, "name")
    if file.measured:
        _check_name(file.measured, "measured")
    for label, entries in (("resources", file.resources), ("rules", file.rules)):
        for k, entry in enumerate(entries):
            _check_name(entry.name, f"{label}[{k}].name")
    return file


def _check_name(name: str, at: str) -> None:
    if not 1 <= len(name) <= MAX_PRINTED_NAME or not name.isprintable():
        raise MachineError(f"{at}: expected {_EXPECTED['name']}, found {describe_json(name)}")


_RATE, _SITE = "a number from 1e-09 to 1e+15", f"the number of a site, less than {MAX_SITES}"
_EXPECTED = {
    "sites": f"a list of at most {MAX_SITES} sites, or one site with a count",
    "hbm_gbs": _RATE,
    "memory_bytes": f"a whole number from 1 to {2**62}",
    "count": f"a whole number from 1 to {MAX_SITES}",
    **dict.fromkeys(PeakRates.__struct_fields__, "a number from 1 to 1e+30"),
    "kernels": f"a list of at most {MAX_KERNELS} measured tasks",
    "task": f"one of {', '.join(get_args(TaskName))}",
    "dtype": f"one of {', '.join(get_args(DTypeName))}",
    "us": "a number from 0 to 1e+09",
    **dict.fromkeys(("sites.kernels[].flops", "sites[].kernels[].flops"), "a number from 1 to 1e+30"),
    "cores": f"a whole number from 1 to {MAX_SITES}",
    "measured": f"a text of at most {MAX_PRINTED_NAME} printable characters",
    "resources": f"a list of at most {MAX_RESOURCES} resources",
    "name": f"a name of 1 to {MAX_PRINTED_NAME} printable characters",
    **dict.fromkeys(("gbs", "peak_gbs"), _RATE),
    "pairs": "a list of pairs of sites",
    "rules": f"a list of at most {MAX_RULES} rules",
    "kind": "switch, links, shared or network",
    "rules[].sites": f"a list of at most {MAX_SITES} sites",
    "rules[].sites[]": _SITE,
    "between": "a list of pairs of sites",
    "rules[].pairs": 'a list of pairs of sites, or "rest"',
    "groups": f"a list of at most {MAX_SITES} groups of sites",
    "groups[]": f"a list of at most {MAX_SITES} sites",
    "groups[][]": _SITE,
    **dict.fromkeys(("pairs[]", "between[]"), "a pair of sites"),
    **dict.fromkeys(("pairs[][]", "between[][]"), _SITE),
    "per": '"group" or "site"',
    "spine_gbs": "a number from 0 to 1e+15",
    **dict.fromkeys(("transfer", "kernel"), "a number from 0 to 1e+09"),
}
"""What has to stand at a place of a file; it is an object at all others. `[]` is any position in a list. The whole path
is looked up first, then what follows its last dot."""

_OBJECTS: Mapping[str, type[FilePart]] = {
    "": MachineFile,
    "sites": RepeatedSite,
    "sites[]": SiteEntry,
    "sites.flops": PeakRates,
    "sites[].flops": PeakRates,
    "sites.kernels[]": KernelEntry,
    "sites[].kernels[]": KernelEntry,
    "resources[]": ResourceEntry,
    "latency_us": LatencyEntry,
}
_RULES: Mapping[str, type[FilePart]] = {
    "switch": SwitchRule, "links": LinksRule, "shared": SharedRule, "network": NetworkRule
}  # fmt: skip
_PATH = re.compile(r" - at `\$((?:\.[a-z0-9_]+|\[[0-9]+\])*)`$")


def _describe_mistake(error: msgspec.ValidationError, tree: Any) -> MachineError:
    """The error in full: msgspec says where the mistake is, and the tree what is there."""
    reason, _, inside = str(error).partition(" - at `$.gpus")
    if inside:  # a mapping, of whose keys msgspec does not say which
        return MachineError(f"gpus{inside.rstrip('`')}: {reason[:1].lower()}{reason[1:]}")
    match = _PATH.search(str(error))
    path = match[1] if match else ""
    try:
        value = tree
        for name, position in re.findall(r"\.([a-z0-9_]+)|\[([0-9]+)\]", path):
            value = value[name or int(position)]
    except (LookupError, TypeError):  # the name of an unknown field that looks like the end of a message
        path, value = "", tree
    path = path.removeprefix(".")
    at, pattern = path or "the machine", re.sub(r"\[[0-9]+\]", "[]", path)
    if isinstance(value, Mapping):
        part = _RULES.get(str(value.get("kind"))) if pattern == "rules[]" else _OBJECTS.get(pattern)
        known = [*["kind"] * (pattern == "rules[]"), *(part.__struct_fields__ if part else ())]
        for name in value:
            if part is not None and name not in known:
                return MachineError(f"{at}: unknown field '{escape_text(name, 40)}' (known: {', '.join(known)})")
        for field in [] if part is None else msgspec.structs.fields(part):
            if field.required and field.name not in value:
                return MachineError(f"{at}: the field '{field.name}' is missing")
        if part is None and pattern == "rules[]":
            return MachineError(f"{at}: the field 'kind' is missing")
    expected = _EXPECTED.get(pattern) or _EXPECTED.get(pattern.rpartition(".")[2], "an object")
    return MachineError(f"{at}: expected {expected}, found {describe_json(value)}")
