"""What other tools print is untrusted: what cannot be their output is one error that says what was expected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from einc.errors import MachineError
from einc.machines.importers.host_lists import read_hosts
from einc.machines.importers.lstopo import read_lstopo
from einc.machines.importers.measured_links import read_measured_links
from einc.machines.importers.nccl import read_nccl
from einc.machines.importers.rocm import read_rocm
from einc.machines.importers.smi import read_smi
from einc.machines.importers.topology_facts import MAX_REPORT_LINES
from einc.machines.schema import MAX_SITES
from einc.machines.xml_reader import read_elements

TOO_LONG = "x\n" * (MAX_REPORT_LINES + 1)
ONE_WAY = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n D 0 1\n 0 900 20\n 1 20 900\n"
BOTH_WAYS = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n D 0\n 0 900\n"
LINK_TYPES = "===== Link Type between two GPUs =====\n"
PCI_GPU = '<object type="PCIDev" pci_type="0302 [10de:2330] [10de:16c1] a1"/>'


def read_xml(reader: Callable[..., object]) -> Callable[[str, str], object]:
    return lambda text, where: reader(read_elements(text, where), where)


@pytest.mark.parametrize(
    ("reader", "text", "words"),
    [
        (read_hosts, "# no host\n\n", "the file lists no hosts"),
        (read_hosts, "node1\nnode2 8\n", "expected the name of a host alone, as in the lines before"),
        (read_measured_links, TOO_LONG, "more than 20,000 lines, which is no output of a test"),
        (read_measured_links, ONE_WAY + BOTH_WAYS, "its matrices have different numbers of GPUs"),
        (read_measured_links, BOTH_WAYS, "there is no matrix 'Unidirectional P2P=Enabled Bandwidth'"),
        (read_measured_links, "# size count type redop algbw busbw\n", "there is no line of results below"),
        (read_rocm, TOO_LONG, "more than 20,000 lines, which is no table of rocm-smi"),
        (read_rocm, "GPU0 GPU1\n", "there is no table 'Link Type between two GPUs'"),
        (read_rocm, f"{LINK_TYPES}       GPU1 GPU0\n", "expected GPU0, GPU1, ... in this order"),
        (read_smi, TOO_LONG, "more than 20,000 lines, which is no topology table"),
        (read_xml(read_nccl), f"<system>{'<gpu/>' * (MAX_SITES + 1)}</system>", "the file lists more than 1024 GPUs"),
        (read_xml(read_lstopo), f"<topology>{PCI_GPU * 1025}</topology>", "the file lists more than 1024 GPUs"),
    ],
)  # fmt: skip
def test_what_is_no_report_of_a_tool_is_one_error(reader: Callable[[str, str], object], text: str, words: str) -> None:
    with pytest.raises(MachineError) as caught:
        reader(text, "report.txt")
    assert words in caught.value.message
    assert caught.value.render().startswith("report.txt:")
