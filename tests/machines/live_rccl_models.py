"""The topologies of a checkout of RCCL, as this importer and another reading of the XML have their links.

`make test-topologies MODELS=rccl/tools/topo_expl/models`. The files are not part of this repository.
"""

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from einc.machines.importers import import_machine
from einc.machines.load import format_machine, parse_machine

FILES = sorted(Path(os.environ.get("MODELS", "")).glob("topo_*.xml")) if os.environ.get("MODELS") else []


def test_there_are_files():
    assert FILES, "MODELS names the folder tools/topo_expl/models of RCCL's repository"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_links_are_those_of_the_lines(path):
    text = path.read_text(encoding="utf-8")
    gpus = [
        (pci.get("busid").lower(), pci.find("gpu"))
        for pci in ET.fromstring(text).iter("pci")
        if pci.find("gpu") is not None
    ]
    site_of = {busid: int(gpu.get("dev")) for busid, gpu in gpus}
    assert len(set(site_of.values())) == len(gpus)
    told = {
        (int(gpu.get("dev")), site_of[link.get("target").lower()]): int(link.get("count"))
        for _, gpu in gpus
        for link in gpu.iter("xgmi")
    }
    imported = import_machine(text, path.name)
    links = {r.pairs[0]: int(r.name.split()[0][4:]) for r in imported.machine.resources if r.name.startswith("xgmi")}
    assert links == told
    assert len(imported.machine.sites) == len(gpus)
    assert parse_machine(format_machine(imported.machine)) == imported.machine
