"""Tables of servers that people published: the machine says of each pair what a second reader takes its word for."""

import itertools

import pytest

from einc.machines.catalogue import load_catalogue
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from tests.support.public_topologies import TABLES, fill_words
from tests.support.topologies import peers

SLOT = 20.0
SWITCH_WORDS, SOCKET_WORDS = {"PIX", "PXB"}, {"SYS", "SOC"}


def make_table(words):
    names = [f"GPU{k}" for k in range(len(words))]
    return "\n".join(["\t".join(names), *("\t".join((name, *row)) for name, row in zip(names, words, strict=True))])


def test_there_are_thirty_servers():
    assert len({table.name for table in TABLES}) == len(TABLES) >= 30


@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_every_pair_is_what_its_word_says(table):
    words = table.words
    text = make_table(words) + ("\n" + peers(fill_words(table.peers)) if table.peers else "")
    gpu = load_catalogue()[table.gpu] if table.gpu else None
    plain = {} if gpu else {"hbm_gbs": 900, "memory_gib": 16}
    options = MachineOverrides(gpu=table.gpu, pcie_gbs=SLOT, socket_gbs=7, staging_gbs=5, **plain)
    machine = import_machine(text, table.name, options).machine
    sites = range(len(words))
    refused = fill_words(table.peers) if table.peers else None
    rates = {pair: min(machine.resources[k].gbs for k in route) for pair, route in machine.routes.items()}
    shared = {
        pair: {name for k in route for name in (machine.resources[k].pairs,)} for pair, route in machine.routes.items()
    }
    assert set(rates) == set(itertools.permutations(sites, 2))
    for a, b in itertools.permutations(sites, 2):
        word = words[a][b]
        links = int(word[2:]) if word.startswith("NV") else 0
        staged = not links and ((refused[a][b] != "OK") if refused else gpu is not None and not gpu.pcie_peers)
        if links:
            assert rates[a, b] == pytest.approx(links * gpu.links.gbs)
            alone = all(len(pairs) == 1 for pairs in shared[a, b])
            assert alone != (table.switched and len(words) > 2)
        elif staged:
            assert rates[a, b] == 5
        elif word in SOCKET_WORDS:
            assert rates[a, b] == 7
        else:
            assert rates[a, b] == SLOT
    for a, b in itertools.permutations(sites, 2):
        if words[a][b] in SWITCH_WORDS:  # what leaves the switch goes over one link, and what stays does not
            leaving = [
                c
                for c in sites
                if c not in (a, b) and words[a][c] not in {*SWITCH_WORDS, "X"} and words[a][c][:2] != "NV"
            ]
            for c in leaving:
                assert any({(a, c), (b, c)} <= set(pairs) for pairs in shared[a, c])
                assert not any({(a, b), (a, c), (b, c)} <= set(pairs) for pairs in shared[a, b])
