"""Machines from what `nvidia-smi`, `rocm-smi`, `lstopo`, NCCL and RCCL say of a computer, and lists of hosts.

Each format has one module that reads it into a `Topology`; `topology.py` makes a machine of that.
"""

from __future__ import annotations

import dataclasses

from einc.errors import MachineError, UsageError
from einc.machines.importers.host_lists import is_hosts_file, join_hosts, read_hosts
from einc.machines.importers.lstopo import read_lstopo
from einc.machines.importers.measured_links import (
    apply_measured,
    describe_measured,
    is_measured_links,
    read_measured_links,
)
from einc.machines.importers.nccl import read_nccl
from einc.machines.importers.rocm import is_rocm_table, read_rocm
from einc.machines.importers.smi import read_smi
from einc.machines.importers.topology import ImportedMachine, MachineOverrides, build_machine
from einc.machines.importers.topology_facts import Topology
from einc.machines.load import format_machine, parse_machine
from einc.machines.xml_reader import read_elements

_RATES_OF_LINKS = ("NVLink", "xGMI", "PCIe", "between sockets", "host memory")
"""How assumptions begin that measured rates replace."""

MAX_TOPOLOGY_TEXT = 4 * 2**20
"""Characters of the largest file; one of 72 GPUs has a hundred thousand."""


def import_machine(
    text: str,
    where: str = "topology",
    overrides: MachineOverrides | None = None,
    node: str | None = None,
    node_where: str = "node",
    rates: str | None = None,
    rates_where: str = "rates",
) -> ImportedMachine:
    """The machine that `nvidia-smi topo -m`, NCCL's topology XML or a hosts file describes; `where` names the text in
    errors. `node` is the topology of one host of a hosts file, and `node_where` its name; `rates` is what a tool
    measured of its links, and `rates_where` the name of that.

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
    measured = [(text, where)] * is_measured_links(text) + (
        [(_clean(rates, rates_where), rates_where)] if rates else []
    )
    for output, name in measured:
        machine = apply_measured(imported.machine, read_measured_links(output, name))
        kept = tuple(line for line in imported.assumptions if not line.startswith(_RATES_OF_LINKS))
        imported = dataclasses.replace(imported, machine=machine, assumptions=kept)
    try:  # what is written must be readable: names and numbers come from the user unchecked
        parse_machine(format_machine(imported.machine), connected=False)
    except MachineError as error:
        raise UsageError(f"no machine can be like this: {error.message}") from None
    return imported


def read_dump(text: str, where: str) -> Topology:
    """The topology that NCCL or RCCL wrote. Raises MachineError for anything else."""
    return read_nccl(read_elements(_clean(text, where), where), where)


def _clean(text: str, where: str) -> str:
    if len(text) > MAX_TOPOLOGY_TEXT:
        raise MachineError(f"the topology file is larger than {MAX_TOPOLOGY_TEXT} characters", where=where)
    return text.removeprefix("\ufeff")


def _read_topology(text: str, where: str) -> Topology:
    start = text.lstrip()[:1]
    if start == "{":
        raise MachineError("this is JSON, as machine files are", where=where, hint="use it as it is: -m FILE")
    if start == "<":
        elements = read_elements(text, where)
        return (read_lstopo if elements[0].name == "topology" else read_nccl)(elements, where)
    if is_rocm_table(text):
        return read_rocm(text, where)
    if is_measured_links(text):
        return describe_measured(read_measured_links(text, where))
    return read_smi(text, where)
