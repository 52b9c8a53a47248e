"""The page docs/truth/kernels.md: how well the rates of GPUs predict what was not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.rates.fit import Accuracy
from tests.rates.kinds import KINDS, Target
from tests.rates.left_out import SIX, LeftOut

TITLES = {
    "products": "Products of matrices",
    "products of 8 bits": "Products of floats of 8 bits",
    "prefill": "Attention of prompts",
    "decode": "Attention of a decode step",
    "experts": "Layers of experts",
}

HEAD = """\
# Kernels: predicted and measured

    make fit-rates

How well the [forms](../predicted-time.md#kernels-on-measured-gpus) by which `einc` predicts the times of kernels on
GPUs agree with times that were measured and not fitted, in bf16, and of products also in f8. The measured times are
those of the package `aiconfigurator-core` {version} (Apache-2.0), the least over its frameworks. `make fit-rates` fits
the rates and writes them and this page, which takes a few minutes; `python -m tests.rates --gpu h100-sxm --kind
products` fits some.

One shape in five is held out, by a hash of its sizes; the others are fitted. Nothing is said of a shape that is
dropped:

- **warm**: a product, or a layer of experts, whose operands cannot have come from memory in its time; it was measured
  with operands in the cache, as they are not in a model, which reads all weights in turn. Where another framework
  measured the shape without, that time counts.
- **dominated**: a product that took more than 1.25 times as long as one that is no smaller in any size.
- **one collection**, **one framework**: attention, and experts, that nothing else confirms, as frameworks have
  kernels of their own for these.

Not counted are attention with windows or with heads of other sizes than 64, 128, 192 and 256, experts without a gate,
and the products of one collection on H100 that reused its weights (SGLang 0.5.6.post2).

In the tables, *median* is that of measured over predicted times; *80%* and *95%* say within which part of the
predicted time so many of the shapes are; *rank* is the rank correlation of measured and predicted times. What is
**not met** is bold.
"""

EXPERTS = """
What was measured are whole layers: two products with their routing, their activation and the sum of the results.
`einc` predicts the products; the time of the rest, two parameters, is no part of the rates. Which framework has a quick
kernel for a model decides more than the shape does.
"""

LEFT_OUT = """
## GPUs without measurements

GPUs that nobody measured ([which ones](../machines.md#gpus-without-measurements)) have rates that are scaled from
their data sheets (`einc/machines/catalogue.json`): shares of the peak rates, loads and softmax relative to the rate
of one multiprocessor's tensor cores, latencies in cycles of its clock, and the rest alike for all. They are fitted
jointly to 1,500 shapes of each of these GPUs (`einc/machines/unit_gpu.json`):

    {six}

Here, each GPU is predicted by what was fitted to others, without tables, and compared with all of its shapes that are
not dropped. A twin, which has the same chip, is left out, too, as a GPU that nobody measured has none. The last three
were never fitted; B300 and GB300 have nearly the chip of B200, which was. Wanted for products is a median within
{median:.0%}.

| left out | kernels | twins left out | shapes | median | 80% | 95% | rank |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |
"""

LEFT_OUT_END = """
The errors of such rates are the greatest of these at 80%. Their times count as not measured, and have no range. None of
the GPUs above is AMD's, and none older than A100: for those, the error was never seen.
"""

LEFT_OUT_TARGET = Target(0.12, 1.0)
"""For products of GPUs that were left out."""


@dataclass(frozen=True)
class Result:
    gpu: str
    kind: str
    counts: Mapping[str, int]
    """How many shapes were measured, and how many were dropped for which reason."""
    accuracy: Accuracy


def describe_result(result: Result) -> str:
    """One line for the terminal."""
    accuracy = result.accuracy
    missed = ", ".join(find_missed(accuracy, KINDS[result.kind].target))
    return (
        f"{result.gpu} {result.kind}: {result.counts['shapes']} shapes, dropped: {describe_dropped(result.counts)}; "
        f"of {accuracy.shapes} held out: median {accuracy.median:.3f}, 80% within {accuracy.most:.1%}, "
        f"95% within {accuracy.nearly_all:.1%}, rank {accuracy.rank:.4f}; {f'missed: {missed}' if missed else 'met'}"
    )


def describe_dropped(counts: Mapping[str, int]) -> str:
    dropped = [f"{reason} {count}" for reason, count in counts.items() if reason != "shapes" and count]
    return ", ".join(dropped) or "none"


def find_missed(accuracy: Accuracy, target: Target) -> list[str]:
    """The columns in which a target is missed."""
    missed = {
        "median": abs(accuracy.median - 1) > target.median,
        "80%": accuracy.most > target.most,
        "95%": target.nearly_all is not None and accuracy.nearly_all > target.nearly_all,
        "rank": target.rank is not None and accuracy.rank < target.rank,
    }
    return [name for name, is_missed in missed.items() if is_missed]


def describe_target(target: Target) -> str:
    parts = [f"a median within {target.median:.0%}", f"80% within {target.most:.0%}"]
    parts += [f"95% within {target.nearly_all:.0%}"] if target.nearly_all is not None else []
    parts += [f"a rank correlation of {target.rank} at least"] if target.rank is not None else []
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def format_accuracy(accuracy: Accuracy, missed: Sequence[str] = ()) -> str:
    """The cells of a table."""
    cells = {
        "median": f"{accuracy.median:.3f}",
        "80%": f"{accuracy.most:.1%}",
        "95%": f"{accuracy.nearly_all:.1%}",
        "rank": f"{accuracy.rank:.4f}",
    }
    return " | ".join(f"**{cell}**" if name in missed else cell for name, cell in cells.items())


def write_section(kind: str, results: Sequence[Result]) -> str:
    """The table of a kind of kernels."""
    target = KINDS[kind].target
    text = f"\n## {TITLES[kind]}\n\nWanted are {describe_target(target)}.\n"
    text += EXPERTS if kind == "experts" else ""
    text += "\n| GPU | measured | dropped | held out | median | 80% | 95% | rank |\n"
    text += "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n"
    for result in results:
        if result.kind == kind:
            accuracy = format_accuracy(result.accuracy, find_missed(result.accuracy, target))
            cells = f"{result.counts['shapes']:,} | {describe_dropped(result.counts)} | {result.accuracy.shapes:,}"
            text += f"| {result.gpu} | {cells} | {accuracy} |\n"
    return text


def write_page(results: Sequence[Result], left_out: Sequence[LeftOut], version: str) -> str:
    text = HEAD.format(version=version)
    text += "".join(write_section(kind, results) for kind in TITLES)
    text += LEFT_OUT.format(six=", ".join(SIX), median=LEFT_OUT_TARGET.median)
    for kind, title in TITLES.items():
        for row in left_out:
            if row.kind == kind:
                missed = find_missed(row.accuracy, LEFT_OUT_TARGET) if kind == "products" else []
                cells = f"{title.lower()} | {describe_without(row)} | {row.accuracy.shapes:,}"
                text += f"| {row.gpu} | {cells} | {format_accuracy(row.accuracy, missed)} |\n"
    return text + LEFT_OUT_END


def describe_without(row: LeftOut) -> str:
    """The GPUs of the six that are left out, too."""
    if row.gpu not in SIX:
        return "never fitted"
    return ", ".join(name for name in row.without if name != row.gpu) or "none"


def describe_left_out(row: LeftOut) -> str:
    """One line for the terminal."""
    accuracy = row.accuracy
    return (
        f"{row.gpu} {row.kind}, left out: of {accuracy.shapes}: median {accuracy.median:.3f}, "
        f"80% within {accuracy.most:.1%}, 95% within {accuracy.nearly_all:.1%}, rank {accuracy.rank:.4f}"
    )
