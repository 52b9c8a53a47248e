"""Detection: this machine's figures, and the machine that a list of GPUs makes."""

from einc.machines.detect import copy_bandwidth, detect, gpu_machine
from einc.machines.load import host_cores, load_machine, machine_json, parse_machine


def test_detection_yields_a_usable_machine():
    machine = detect()
    assert parse_machine(machine_json(machine)) == machine
    if machine.name == "host":
        assert len(machine.sites) == host_cores()
        assert 0.01 <= machine.sites[0].hbm_gbs < 10_000
        assert all(0.01 <= resource.gbs < 10_000 for resource in machine.resources)


def test_the_copy_bandwidth_is_measured():
    assert 0.01 <= copy_bandwidth(size=2**20, repeats=2) < 10_000


def test_known_gpus_get_their_preset_and_others_a_shared_bridge():
    h100 = gpu_machine([("NVIDIA H100 80GB HBM3", 85_000_000_000, 0.0)] * 4)
    assert h100.resources == load_machine("dgx-h100", 4).resources
    assert {site.memory_bytes for site in h100.sites} == {85_000_000_000}
    assert h100.sites[0].hbm_gbs == 3350
    mixed = gpu_machine([("NVIDIA A100-SXM4-40GB", 10, 1555.2), ("Tesla T4", 10, 320.1)])
    assert [site.hbm_gbs for site in mixed.sites] == [1555.2, 320.1]
    assert len(mixed.resources) == 1
    assert len(mixed.routes) == 2
    alone = gpu_machine([("Tesla T4", 10, 320.1)])
    assert alone.resources == ()
    assert parse_machine(machine_json(alone)) == alone
