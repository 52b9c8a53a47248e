"""`rocm-smi --showtopo`: links and sockets as its tables say."""

import pytest

from einc.errors import MachineError, UsageError
from einc.machines.importers import import_machine
from einc.machines.importers.topology import MachineOverrides
from einc.machines.load import load_machine
from tests.support.rocm_tables import mesh, rocm


def test_a_mesh_is_the_preset():
    text = rocm(mesh(8, "XGMI"), mesh(8, "15"), [0, 0, 0, 0, 1, 1, 1, 1], "AMD Instinct MI300X")
    imported = import_machine(text, overrides=MachineOverrides(name="mi300x-8"))
    preset = load_machine("mi300x-8")
    assert imported.machine.sites == preset.sites
    assert {r.pairs: r.gbs for r in imported.machine.resources} == {r.pairs: r.gbs for r in preset.resources}
    assert "how many xGMI links" in imported.warnings[0]


def test_only_the_least_weight_is_a_link_and_pcie_goes_between_sockets():
    """Four cards in a ring of xGMI: the two across have weight 30."""
    weights = mesh(4, "15")
    for a, b in ((0, 2), (1, 3)):
        weights[a][b] = weights[b][a] = "30"
    ring = import_machine(rocm(mesh(4, "XGMI"), weights), overrides=MachineOverrides(gpu="mi100")).machine
    assert sorted(r.name for r in ring.resources if "xgmi" in r.name)[:2] == ["xgmi1 0>1", "xgmi1 0>3"]
    pcie = import_machine(rocm(mesh(4, "PCIE"), mesh(4, "52"), [0, 0, 1, 1]), overrides=MachineOverrides(gpu="mi100"))
    assert [pcie.machine.resources[k].name for k in pcie.machine.routes[1, 2]] == [
        "pcie out 1", "pcie in 2", "socket out 0"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda t: t.replace("XGMI", "NVLINK", 1), "'NVLINK', which is no type of link"),
        (lambda t: t.replace("XGMI", "PCIE", 1), "GPU0 to GPU1 is PCIE, but not back"),
        (lambda t: t[: t.rindex("GPU3   XGMI")], "ends before its last row"),
        (lambda t: t.replace("GPU2   XGMI", "GPU9   XGMI"), "expected the row of GPU2, with 4 columns"),
        (lambda t: t.replace("GPU0         GPU1", "GPU0 card1"), "expected a line that names GPU0"),
    ],
)
def test_broken_tables_have_one_clear_error(damage, words):
    with pytest.raises(MachineError) as caught:
        import_machine(damage(rocm(mesh(4, "XGMI"))), "rocm.txt")
    assert words in caught.value.render()
    assert caught.value.render().startswith("rocm.txt")


def test_an_unknown_series_is_asked_for():
    with pytest.raises(UsageError, match="'AMD Radeon RX 7900'"):
        import_machine(rocm(mesh(2, "PCIE"), series="AMD Radeon RX 7900"))
