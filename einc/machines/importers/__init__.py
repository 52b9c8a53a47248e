"""Machines from what `nvidia-smi` and NCCL say about a computer, and hosts files about several.

Each format has one module that reads it into a `Topology`; `topology.py` makes a machine of that.
"""

from __future__ import annotations

from einc.errors import MachineError, UsageError
from einc.machines.importers.hosts import is_hosts_file, join_hosts, read_hosts
from einc.machines.importers.nccl import read_nccl
from einc.machines.importers.smi import read_smi
from einc.machines.importers.topology import ImportedMachine, MachineOverrides, build_machine
from einc.machines.importers.topology_facts import Topology
from einc.machines.load import format_machine, parse_machine

MAX_TOPOLOGY_TEXT = 4 * 2**20
"""Characters of the largest file; one of 72 GPUs has a hundred thousand."""


def import_machine(
    text: str,
    where: str = "topology",
    overrides: MachineOverrides | None = None,
    node: str | None = None,
    node_where: str = "node",
) -> ImportedMachine:
    """The machine that `nvidia-smi topo -m`, NCCL's topology XML or a hosts file describes; `where` names the text in
    errors. `node` is the topology of one host of a hosts file, and `node_where` its name.

    Raises MachineError for anything else, UsageError where the overrides must tell what the text does not, or ask
    for what no machine file may hold.
    """
    text = _clean(text, where)
    if is_hosts_file(text):
        inside = None if node is None else _read_topology(_clean(node, node_where), node_where)
        topology = join_hosts(read_hosts(text, where), inside)
    else:
        if node is not None:
            raise UsageError("--node is for a hosts file", hint="FILE has to be one, with lines as `node1 slots=8`")
        topology = _read_topology(text, where)
    imported = build_machine(topology, overrides or MachineOverrides(), where)
    try:  # what is written must be readable: names and numbers come from the user unchecked
        parse_machine(format_machine(imported.machine), connected=False)
    except MachineError as error:
        raise UsageError(f"no machine can be like this: {error.message}") from None
    return imported


def _clean(text: str, where: str) -> str:
    if len(text) > MAX_TOPOLOGY_TEXT:
        raise MachineError(f"the topology file is larger than {MAX_TOPOLOGY_TEXT} characters", where=where)
    return text.removeprefix("\ufeff")


def _read_topology(text: str, where: str) -> Topology:
    start = text.lstrip()[:1]
    if start == "{":
        raise MachineError("this is JSON, as machine files are", where=where, hint="use it as it is: -m FILE")
    return read_nccl(text, where) if start == "<" else read_smi(text, where)
