"""What a server has done, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from einc.serving.models import ServedModel, TextModel

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds up to which requests are counted together."""


class Histogram:
    """How many times took up to so many seconds."""

    def __init__(self) -> None:
        self._counts, self._sum = [0] * (len(BUCKETS) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """Its samples; `labels` is empty, or has a comma at its end."""
        sums = list(accumulate(self._counts))
        bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
        bucket_lines = [
            f'{name}_bucket{{{labels}le="{bound}"}} {count}' for bound, count in zip(bounds, sums, strict=True)
        ]
        label_set = f"{{{labels.rstrip(',')}}}" if labels else ""
        return [*bucket_lines, f"{name}_sum{label_set} {self._sum:.6f}", f"{name}_count{label_set} {sums[-1]}"]


class Metrics:
    """Counts of requests, in the thread of the event loop. Labels are paths of the API and numbers, nothing else."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._first = Histogram()

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests[path, status] += 1
        self._seconds.setdefault(path, Histogram()).observe(seconds)

    def observe_first(self, seconds: float) -> None:
        """Counts the time from a request to its first token."""
        self._first.observe(seconds)

    def render(self, served: ServedModel) -> str:
        """The page of `/metrics`."""
        engine = served.model.engine
        counts = engine.counts
        groups = [
            _group("einc_requests_total", "counter", "Answers by path and status.", [
                f'einc_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self._requests.items())
            ]),
            _group("einc_request_seconds", "histogram", "Seconds from a request to the end of its answer.", [
                line
                for path, histogram in sorted(self._seconds.items())
                for line in histogram.lines("einc_request_seconds", f'path="{path}",')
            ]),
            _group("einc_sequences_total", "counter", "Texts that have ended.", [
                f'einc_sequences_total{{ended="{name}"}} {count}'
                for name, count in (("finished", counts.finished), ("failed", counts.failed),
                                    ("cancelled", counts.cancelled))
            ]),
            _single("einc_slots", "gauge", "Texts that can run at once.", engine.size),
            _single("einc_sequences_running", "gauge", "Texts that run.", counts.running),
            _single("einc_sequences_waiting", "gauge", "Texts that wait for a slot.", counts.waiting),
        ]  # fmt: skip
        if isinstance(served.model, TextModel):
            times = served.model.times
            groups += [
                _group("einc_first_token_seconds", "histogram", "Seconds from a request to its first token.",
                       self._first.lines("einc_first_token_seconds", "")),
                _single("einc_prompt_tokens_total", "counter", "Tokens of prompts that were read.",
                        times.prefill_tokens),
                _single("einc_prompt_cached_tokens_total", "counter",
                        "Tokens of prompts that were not read: earlier prompts had them, too.", times.cached_tokens),
                _single("einc_decode_tokens_total", "counter", "Tokens that steps took.", times.decode_tokens),
                _single("einc_prompt_seconds_total", "counter", "Seconds in plans for prompts.",
                        round(times.prefill_ms / 1e3, 6)),
                _single("einc_decode_seconds_total", "counter", "Seconds in steps.", round(times.decode_ms / 1e3, 6)),
            ]  # fmt: skip
        return "\n".join(line for group in groups for line in group) + "\n"


def _single(name: str, kind: str, text: str, value: float) -> list[str]:
    return _group(name, kind, text, [f"{name} {value}"])


def _group(name: str, kind: str, text: str, samples: Iterable[str]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples]
