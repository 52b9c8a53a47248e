"""Machines from what `nvidia-smi` and NCCL say about a computer.

Each format has one module that reads it into a `Topology`; `topology.py` makes a machine of that.
"""

from __future__ import annotations

from einc.errors import MachineError, UsageError
from einc.machines.importers.nccl import read_nccl
from einc.machines.importers.smi import read_smi
from einc.machines.importers.topology import ImportedMachine, MachineOverrides, build_machine
from einc.machines.load import format_machine, parse_machine

MAX_TEXT = 4 * 2**20
"""Characters of the largest file; one of 72 GPUs has a hundred thousand."""


def import_machine(text: str, where: str = "topology", overrides: MachineOverrides | None = None) -> ImportedMachine:
    """The machine that `nvidia-smi topo -m` or NCCL's topology XML describes; `where` names the text in errors.

    Raises MachineError for anything else, UsageError where the overrides must tell what the text does not, or ask
    for what no machine file may hold.
    """
    if len(text) > MAX_TEXT:
        raise MachineError(f"the topology file is larger than {MAX_TEXT} characters", where=where)
    text = text.removeprefix("\ufeff")
    start = text.lstrip()[:1]
    if start == "{":
        raise MachineError("this is JSON, as machine files are", where=where, hint="use it as it is: -m FILE")
    topology = read_nccl(text, where) if start == "<" else read_smi(text, where)
    imported = build_machine(topology, overrides or MachineOverrides(), where)
    try:  # what is written must be readable: names and numbers come from the user unchecked
        parse_machine(format_machine(imported.machine), connected=False)
    except MachineError as error:
        raise UsageError(f"no machine can be like this: {error.message}") from None
    return imported
