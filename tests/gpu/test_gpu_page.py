"""The page that `make gpu-check` writes, and what of it decides that the check has passed."""

from __future__ import annotations

import re

import pytest

from tests.gpu import benchmark
from tests.gpu.findings import Findings, holds
from tests.gpu.records import record, timing
from tests.gpu.report import page, summary


def test_the_page_tells_what_holds_and_what_does_not():
    findings = Findings(
        [record(), record(sites=8), record("bert f32", error=None, torch_error=None, problem="boom\nx")]
    )
    findings.benchmarks = [timing(), timing("chain_a", ours=1.5, jax="ImportError: no jax")]
    findings.checks[0]["notes"] = findings.checks[1]["notes"] = ("attention of torch is not used: why",)
    findings.lost, findings.left = ["rows on 2 sites: exit code 3"], ["matrix chain B"]
    text = page(findings, {"GPU": "Fake"}, 12.3)
    assert "2 of 3 plans are right" in text
    assert "| ffn f16 | 1: 1.0e-03, 8: 1.0e-03 | 2.0e-03 | 0.01 | cublas, triton |" in text
    assert "- **wrong**: bert f32 on 1 sites: boom x" in text
    assert "- **took the process with it**: rows on 2 sites" in text
    assert "- not reached in time: matrix chain B" in text
    assert text.count("- attention of torch is not used: why") == 1
    row = next(line for line in text.splitlines() if line.startswith("| LLaMA block, 8K tokens"))
    assert row.split("|")[2:] == [
        " 1.000 (3%) ",
        "  ",
        "  ",
        " 1.200 ",
        " 1.000 ",
        "  ",
        " 1.000 ",
        " 1.10 ",
        " 9, **61** ",
        " 1.0e-03 ",
        "",
    ]
    row = next(line for line in text.splitlines() if line.startswith("| matrix chain A"))
    assert "**1.500**" in row
    assert "matrix chain A, jax: ImportError: no jax" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert not findings.passed
    assert "boom" in summary(findings)


def test_other_bits_of_a_reproducible_plan_are_wrong():
    """The first number of sites says which bits the others must have; other cases may have others."""
    findings = Findings()
    for sites, bits in ((1, "aa"), (2, "aa"), (3, "bb"), (4, "aa")):
        findings.take_check({**record("ffn reproducible f16", sites=sites), "bits": bits, "layout": "aliased"})
    findings.take_check({**record("ffn reproducible f32"), "bits": "cc"})
    findings.take_check(record("ffn f16"))
    assert [own["sites"] for own in findings.wrong] == [3]
    assert not findings.passed
    text = page(findings, {"GPU": "Fake"}, 12.3)
    assert "- ffn reproducible f16: the same bits on 1 aliased, 2 aliased, 4 aliased sites (aa)" in text
    assert "- **wrong**: ffn reproducible f16 on 3 aliased sites: other bits than on 1 sites" in text
    assert "- ffn reproducible f32: the same bits on 1 sites (cc)" in text


def test_the_page_has_every_traceback_once_and_where_the_time_goes():
    text = "Traceback:\n  in launch\n```CUDARuntimeError: an illegal address"
    checks = [record(problem="x", error=None, torch_error=None, traceback=text, sites=sites) for sites in (1, 4)]
    findings = Findings([*checks, record()], [timing() | {"tracebacks": {"jax": "no jax"}}])
    findings.benchmarks[0]["steps"] = {"einc": ["| for | ms |", "| --- | --- |", "| q | 1 |"], "torch": ["- q 0.9"]}
    findings.complaints["chain_a f16 on 8 sites"] = "Fatal Python error: Segmentation fault"
    found = page(findings, {}, 1.0)
    full = found[found.index("## What failed, in full") :]
    assert "ffn f16 on 1 sites; ffn f16 on 4 sites:\n\n```text\nTraceback:\n  in launch\n~~~CUDARuntimeError" in full
    assert full.count("an illegal address") == 1
    assert "block8k, jax:\n\n```text\nno jax\n```" in full
    assert "chain_a f16 on 8 sites:\n\n```text\nFatal Python error" in full
    assert "LLaMA block, 8K tokens, einc:\n\n| for | ms |\n| --- | --- |\n| q | 1 |\n\n" in found
    assert "LLaMA block, 8K tokens, torch:\n\n- q 0.9\n" in found
    findings.checks = [record(traceback=str(n), sites=n) for n in range(30)]
    assert "and 12 more" in page(findings, {}, 1.0)
    assert "in full" not in page(Findings([record()], [timing()]), {}, 1.0)


def test_figures_that_miss_their_targets_are_in_bold():
    slow = timing(ours=6.3) | {"ms": {"einc": 6.3, "torch eager": 6.25}}
    slow |= {"step_ms": {"o": 0.1, "a": 0.2}, "alone": {"o": {"cuBLASLt": 0.095, "cuBLAS": 0.097}, "a": {"own": 0.17}}}
    findings = Findings(benchmarks=[slow], ceilings={"bytes": 3.1e12, "operations": 7e14, "states": {}})
    text = page(findings, {}, 1.0, "raw.json")
    row = next(line for line in text.splitlines() if line.startswith("| LLaMA block, 8K tokens"))
    assert "| **6.300** (3%) |" in row
    assert "| **1.008** |" in row
    assert "| LLaMA block, 8K tokens | o | 0.1000 | 0.0950 cuBLASLt | 0.95 |" in text
    assert "| LLaMA block, 8K tokens | a | 0.2000 | 0.1700 own | **0.85** |" in text
    assert "3.1 TB/s to and from memory" in text
    assert "are in `raw.json`" in text


def test_a_tuned_plan_stands_beside_the_others_and_is_held_against_the_best():
    own = timing()
    own |= {"ms": own["ms"] | {"einc": 1.2, "einc, tuned": 0.9, "torch eager": 1.0}}
    text = page(Findings(benchmarks=[own]), {}, 1.0)
    row = next(line for line in text.splitlines() if line.startswith("| LLaMA block, 8K tokens"))
    assert row.split("|")[3] == " 0.900 "
    best = min(own["ms"][name] for name in own["ms"] if not name.startswith("einc"))
    assert f"| **{1.2 / best:.3f}**, {0.9 / best:.3f} |" in row


def test_the_least_width_of_rows_is_told_beside_what_plans_are_made_with():
    probe = {"probe": "rows", "status": "ok", "detail": "copy / kernel: 64 B 10 / 20; MIN_ROW_BYTES: above 4096"}
    text = page(Findings([record()], probes=[probe]), {}, 1.0)
    assert "about as fast as a kernel from above 4096 bytes on. Plans leave rows below 128 bytes" in text
    for other in ({"status": "failed"}, {"detail": "copy / kernel: 64 B 10; no kernel: why"}):
        assert "Plans leave rows" not in page(Findings([record()], probes=[probe | other]), {}, 1.0)


def test_errors_of_libraries_and_of_our_own_attention_stand_apart():
    both = {"library": (1e-3, 2e-3), "own kernel": (3e-2, None)}
    text = page(Findings([record(error=3e-2, errors=both), record(sites=8, layout="staged")]), {}, 1.0)
    assert "| ffn f16 | 1: 1.0e-03 / 3.0e-02 **wrong**, 8 staged: 1.0e-03 |" in text
    assert "library: error 0.001 (PyTorch 0.002); own kernel: error 0.03 (PyTorch None), allowed 0.01" in text


def test_what_is_broken_is_one_line_and_its_cases_are_not_passed():
    probes = [{"probe": "cublas", "status": "failed", "detail": "status | 13"},
              {"probe": "rows", "status": "ok", "detail": "fast"}]  # fmt: skip
    skipped = [record(unchecked="needs cuBLAS", sites=sites) for sites in (1, 4)]
    findings = Findings([record()], probes=probes, unchecked=skipped, links={"problem": "exit code 1"})
    text = page(findings, {}, 1.0)
    assert "| cuBLAS, captured | **failed** | status / 13 |" in text
    assert "1 of 1 plans are right, and 2 were not checked" in text
    assert "- **not checked**, needs cuBLAS: ffn f16 on 1, ffn f16 on 4\n" in text
    assert "not measured: exit code 1" in text
    assert not findings.passed
    assert Findings([record()], probes=probes).passed  # nothing needed it
    assert "not checked: ffn f16 on 1: needs cuBLAS" in summary(findings)


@pytest.mark.parametrize(
    "broken",
    [{"error": 0.02}, {"torch_error": 0.02}, {"same_bits": False}, {"problem": "x"}, {"error": float("nan")},
     {"error": None, "torch_error": None}],
)  # fmt: skip
def test_a_plan_that_is_wrong_in_any_way_fails_the_check(broken):
    assert Findings([record()]).passed
    assert not holds(record(**broken))
    assert not Findings([record(), record(**broken)]).passed


def test_nothing_checked_is_not_passed_and_bad_benchmarks_fail():
    assert not Findings().passed
    assert Findings(benchmarks=[timing()]).passed
    assert not Findings(benchmarks=[timing(error=0.5)]).passed
    assert not Findings(benchmarks=[timing(error=float("nan"))]).passed
    assert not Findings(benchmarks=[timing(einc="PlanFault: no kernel")]).passed
    assert not Findings(benchmarks=[timing() | {"errors": {}}]).passed  # compared with nothing
    assert Findings(benchmarks=[timing(**{"einc, 8 sites": benchmark.NO_TIME})]).passed
    assert not Findings([record()], lost=["x"]).passed
