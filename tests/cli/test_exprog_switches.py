"""`einc exprog` with switches that copy and add: on request, and where a file has them."""

SUM = """IN: A @ 0; B @ 1; C+D @ 2
OUT: A+B+C+D @ 0, 1, 3

A+B+C+D @ 3 <= {C+D @ 2, A @ 0, B @ 1}
A+B+C+D @ 3 => 0, 1
"""
S8 = "+".join("ABCDEFGH")
IN8 = "; ".join(f"{atom} @ {site}" for site, atom in enumerate("ABCDEFGH"))


def test_the_command_line(einc, tmp_path):
    path = tmp_path / "sum.exprog"
    path.write_text(SUM, encoding="utf-8")
    assert einc("exprog", "check", path, "-m", "dgx-h100").out.endswith(": valid\n")
    assert einc("exprog", "simulate", path, "-m", "dgx-h100", "--ideal").out.startswith("4.444 ms")
    shown = einc("exprog", "bound", path, "-m", "dgx-h100", "--ideal").out
    assert "no program takes less than 2.222 ms: cut {0}" in shown
    path.write_text(f"IN: {IN8}\nOUT: {S8} @ 0, 1, 2, 3, 4, 5, 6, 7\n", encoding="utf-8")
    result = einc("exprog", "optimize", path, "-m", "dgx-h100", "--ideal", "--switches", "-o", tmp_path / "f.exprog")
    assert result.out.startswith("2.333 ms")
    assert einc("exprog", "check", tmp_path / "f.exprog", "-m", "dgx-h100").code == 0
    refused = einc("exprog", "optimize", path, "-m", "dgx-a100", "--switches")
    assert refused.code == 2
    assert "dgx-a100 has no switch that copies and adds" in refused.err
    exported = einc("exprog", "export", tmp_path / "f.exprog", "--format", "mscclpp-json")
    assert exported.code != 0
    assert "for which plans have no task" in exported.err
    page = einc("exprog", "simulate", tmp_path / "f.exprog", "-m", "dgx-h100", "--html", tmp_path / "p.html")
    assert page.code == 0, page.err
