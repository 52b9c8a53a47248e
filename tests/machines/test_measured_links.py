"""Measured rates of links, by p2pBandwidthLatencyTest and nccl-tests, replace what was assumed."""

import pytest

from einc.errors import MachineError, UsageError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from tests.support.topologies import new_style, peers, switched

RTX_4090 = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 85, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA GeForce RTX 4090, pciBusID: 86, pciDeviceID: 0, pciDomainID:0
Device: 2, NVIDIA GeForce RTX 4090, pciBusID: 89, pciDeviceID: 0, pciDomainID:0
Device=0 CANNOT Access Peer Device=1

***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal memcopy procedure.

P2P Connectivity Matrix
     D\\D     0     1     2
     0\t     1     0     1
     1\t     0     1     1
     2\t     1     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 918.31  20.00  20.00
     1  20.00 918.31  20.00
     2  20.00  20.00 918.31
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 919.56  20.50  25.10
     1  20.25 923.19  25.20
     2  25.30  12.00 921.56
Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 919.56  25.00  25.00
     1  25.00 923.19  25.00
     2  25.00  25.00 921.56
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 919.56  26.00  41.00
     1  26.10 923.19  41.10
     2  41.20  41.30 921.56
P2P=Disabled Latency Matrix (us)
   GPU     0      1      2
     0   1.59  15.33  12.53
     1  20.72   1.82  12.84
     2  11.73  17.40   1.66
"""
RING = """# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    32.45    0.00    0.00      0    31.90    0.00    0.00      0
  8589934592    2147483648     float     sum      -1    31312  274.33  480.08      0    31300  274.44  480.27      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 100.0
"""
RANKS = "\n".join(
    f"#  Rank  {k} Group  0 Pid  1234 on  node device  {k} [0x0{k}] NVIDIA H100 80GB HBM3" for k in range(8)
)


def rates_of(machine):
    return {pair: min(machine.resources[k].gbs for k in route) for pair, route in machine.routes.items()}


def test_a_matrix_is_a_machine():
    imported = import_machine(RTX_4090, "p2p.txt")
    assert rates_of(imported.machine) == {
        (0, 1): 20.5, (1, 0): 20.25, (0, 2): 25.1, (2, 0): 25.3, (1, 2): 25.2, (2, 1): 12.0
    }  # fmt: skip
    memory = next(resource for resource in imported.machine.resources if resource.name == "host memory")
    assert (memory.gbs, sorted(memory.pairs)) == (26.1, [(0, 1), (1, 0)])
    assert imported.machine.name == "rtx-4090-x3"
    assert not any("--pcie-gbs" in line or "--staging-gbs" in line for line in imported.assumptions)


def test_a_matrix_replaces_what_was_assumed():
    rows = [["X", "PHB", "SYS"], ["PHB", "X", "SYS"], ["SYS", "SYS", "X"]]
    words = [["X", "GNS", "OK"], ["GNS", "X", "OK"], ["OK", "OK", "X"]]
    text = new_style(rows) + peers(words)
    plain = import_machine(text, overrides=MachineOverrides(gpu="rtx-4090"))
    measured = import_machine(text, overrides=MachineOverrides(gpu="rtx-4090"), rates=RTX_4090).machine
    assert {r.name for r in measured.resources} - {r.name for r in plain.machine.resources} <= {
        "measured 2>1",
        "measured 0>1",
        "measured 1>0",
    }
    assert rates_of(measured)[2, 1] == 12.0
    assert rates_of(measured)[0, 2] == pytest.approx(25.1, rel=0.1)
    with pytest.raises(UsageError, match="those of 3 GPUs, and the machine has 2"):
        import_machine(new_style([["X", "SYS"], ["SYS", "X"]]), overrides=MachineOverrides(gpu="l4"), rates=RTX_4090)


def test_a_ring_tells_the_rate_of_links_that_are_alike():
    text = RING.format(ranks=RANKS)
    table = new_style(switched(8, 18))
    machine = import_machine(table, overrides=MachineOverrides(gpu="h100"), rates=text).machine
    assert {(resource.gbs, resource.peak_gbs) for resource in machine.resources} == {(480.27, None)}
    rows = [["X" if a == b else "NV16" if 3 in (a, b) else "NV18" for b in range(8)] for a in range(8)]
    with pytest.raises(UsageError, match="not all alike"):
        import_machine(new_style(rows), overrides=MachineOverrides(gpu="h100"), rates=text)
    with pytest.raises(UsageError, match="how fast a ring is"):
        import_machine(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RTX_4090.replace("25.10", "nan"), "p2p.txt:21:1: expected the row of GPU 0, with 3 numbers"),
        (RTX_4090.replace("25.10", "0.00"), "GPU 0 to GPU 2 has 0 GB/s, which is no rate"),
        (RTX_4090[: RTX_4090.index("     2  25.30")], "expected the row of GPU 2"),
        (RTX_4090.replace("Unidirectional P2P=Enabled", "P2P=Enabled"), "there is no matrix 'Unidirectional"),
        (RTX_4090.replace("   D\\D     0      1      2", "   D\\D     0      1      9"), "numbers the columns from 0"),
        (RING.format(ranks=""), "expected a line `# Rank 0"),
        (RING.format(ranks=RANKS).replace("480", "-1"), "expected a rate in column"),
    ],
)
def test_broken_outputs_have_one_clear_error(text, words):
    with pytest.raises(MachineError) as caught:
        import_machine(text, "p2p.txt")
    assert words in caught.value.render()
