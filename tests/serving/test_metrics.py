"""Histograms in the text format of Prometheus: sums up to each bound."""

from __future__ import annotations

from einc.serving.metrics import BUCKETS, Histogram


def test_a_time_counts_up_to_every_bound_above_it() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.005, 0.006, 2.0, 1e9):
        histogram.observe(seconds)
    lines = histogram.lines("t", 'path="/a",')
    counts = [int(line.split()[1]) for line in lines[: len(BUCKETS) + 1]]
    assert counts == [2, *[3] * 7, *[4] * 6, 5]
    assert lines[0] == 't_bucket{path="/a",le="0.005"} 2'
    assert lines[-3] == 't_bucket{path="/a",le="+Inf"} 5'
    assert lines[-2:] == ['t_sum{path="/a"} 1000000002.012000', 't_count{path="/a"} 5']
    assert histogram.lines("t", "")[-1] == "t_count 5"
