"""The figure of docs/benchmarks.md: a panel for each processor, in it a bar for each case and competitor.

The file is written by hand, without a library, so that it has the colours of light and of dark pages, and the same
bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from tests.bench.results import FOLDER, Record, Results

FIGURE = FOLDER / "ratios.svg"


class Peer(NamedTuple):
    """Programs that share a colour, light and dark; `kinds` are how the names of competitors begin."""

    name: str
    kinds: tuple[str, ...]
    light: str
    dark: str


PEERS = (
    Peer("ONNX Runtime", ("onnxruntime",), "#0072b2", "#4aa3df"),
    Peer("OpenVINO", ("openvino",), "#009e73", "#2fc49a"),
    Peer("llama.cpp", ("llama.cpp",), "#e69f00", "#f2b632"),
    Peer("PyTorch", ("torch", "transformers"), "#d55e00", "#f5824a"),
    Peer("JAX", ("jax",), "#b9669c", "#dd97c2"),
)

GROUPS = (
    ("LLaMA of 125M", (
        ("prefillf32", "512 tokens, f32"), ("prefillbf16", "512 tokens, bf16"),
        ("decode1f32", "1 new token, f32"), ("decode1bf16", "1 new token, bf16"),
        ("decode1int8", "1 new token, int8"), ("decode1int4", "1 new token, 4 bits"),
        ("decode8f32", "8 texts, f32"), ("decode8bf16", "8 texts, bf16"),
        ("decode8int8", "8 texts, int8"), ("decode8int4", "8 texts, 4 bits"),
    )),
    ("MiniLM", (("minilm", "32 texts of 128"), ("sentence", "one sentence"))),
    ("images", (
        ("convnet", "8 of 56 x 56, f32"), ("resnet_50", "ResNet-50, 8"), ("vit_b_16", "ViT-B/16, 8"),
    )),
    ("sound", (("whisper_tiny", "Whisper tiny, 30 s"),)),
    ("experts", (("moe8", "8 tokens, f32"), ("moe512", "512 tokens, f32"))),
    ("operators", (
        ("conv2d", "convolution"), ("softmax", "softmax"), ("layernorm", "layernorm"), ("groupnorm", "groupnorm"),
        ("cumsum64", "cumsum, 64 rows"), ("cumsum4096", "cumsum, 4096 rows"), ("gather", "gather"),
        ("selective_scan", "selective scan"),
    )),
    ("LLaMA block", (
        ("block512", "512 tokens, f32"), ("block2048", "2048 tokens, f32"), ("block2048bf16", "2048 tokens, bf16"),
    )),
    ("matrix chain", tuple((f"chain_{letter}", letter.upper()) for letter in "abcde")),
)  # fmt: skip
"""The cases that one sees at a glance; the others are on the pages of the processors."""

LEFT, PANEL, GAP, TOP = 210, 250, 18, 92
"""Widths of the labels, of a panel and between panels, and the height above the first bar, in pixels."""
MIN_WIDTH = 760
"""What title and legend need."""
LEGEND = 118
"""From one name of the legend to the next."""
BAR, STEP, CASE_GAP, GROUP_GAP = 8, 10, 5, 10
"""The height of a bar, from one to the next, and what is left free after a case and after a group."""
NUMBER = 26
"""The width of a bar's number, which neither crosses the line at 1 nor leaves the panel."""
FULL = 1.6
"""The ratio at a panel's right side; longer bars end there, and their number says how long they are."""

TITLE = "einc's time relative to the competitor's: where a bar ends before the line at 1, einc is faster"
_STYLE = """
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 11px; fill: #1f2328; }
.page { fill: #ffffff; } .slow { fill: #f4e9e6; } .grid { stroke: #d1d9e0; } .line { stroke: #1f2328; }
.line { stroke-width: 1.5; } .small { font-size: 9px; } .soft { fill: #59636e; } .bold { font-weight: 600; }
"""
_DARK = ".page { fill: #0d1117; } .slow { fill: #2c1c1a; } .grid { stroke: #3d444d; } .line { stroke: #f0f6fc; }"
_DARK += " text { fill: #f0f6fc; } .soft { fill: #9198a1; }"


def list_cases() -> Iterator[tuple[str, str, str]]:
    """Group, name and label of every case of the figure."""
    for group, cases in GROUPS:
        for name, label in cases:
            yield group, name, label


def list_peers(name: str, panels: list[Results]) -> list[Peer]:
    """Who computes a case on any of the processors."""
    records = [results.cases[name] for results in panels if name in results.cases]
    return [peer for peer in PEERS if any(record.best(*peer.kinds) for record in records)]


def draw(panels: list[Results], path: Path = FIGURE) -> None:
    """Writes the figure. Bars are einc's time relative to the fastest variant of each competitor."""
    body, y, last_group = [], TOP, ""
    for group, name, label in list_cases():
        peers = list_peers(name, panels)
        if not peers:
            continue
        if group != last_group:
            y += GROUP_GAP if last_group else 0
            body.append(_text(8, y + BAR, group, "bold"))
        last_group = group
        body.append(_text(LEFT - 10, y + BAR, label, end=True))
        for number, results in enumerate(panels):
            body += _draw_case(_left(number), y, results.cases.get(name), peers)
        y += len(peers) * STEP + CASE_GAP
    width, height = max(_left(len(panels)) - GAP + 12, MIN_WIDTH), y + 24
    head = _draw_frame(panels, y)
    lines_at_one = [_left(number) + _length(1) for number in range(len(panels))]
    body += [f'<path class="line" d="M{x:.1f} {TOP - 4}V{y}"/>' for x in lines_at_one]
    rules = "".join(f" .c{n} {{ fill: {peer.light}; }}" for n, peer in enumerate(PEERS))
    dark = "".join(f" .c{n} {{ fill: {peer.dark}; }}" for n, peer in enumerate(PEERS))
    style = f"<style>{_STYLE}{rules}\n@media (prefers-color-scheme: dark) {{ {_DARK}{dark} }}\n</style>"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="einc\'s time relative to each competitor, by case and processor">',
        style, f'<rect class="page" width="{width}" height="{height}" rx="6"/>', *head, *body, "</svg>",
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _left(number: int) -> int:
    return LEFT + number * (PANEL + GAP)


def _draw_frame(panels: list[Results], bottom: int) -> Iterator[str]:
    """Title, legend, and each panel's title and grid."""
    yield _text(8, 20, TITLE, "bold")
    for number, peer in enumerate(PEERS):
        x = LEFT + number * LEGEND
        yield f'<rect class="c{number}" x="{x}" y="34" width="12" height="{BAR}"/>'
        yield _text(x + 17, 34 + BAR, peer.name)
    for number, results in enumerate(panels):
        x = _left(number)
        for row, words in enumerate(results.title.replace(" (", "\n").replace(")", "").split("\n")):
            yield _text(x, 62 + 13 * row, words, "soft" if row else "bold")
        yield f'<rect class="slow" x="{x + _length(1):.1f}" y="{TOP - 4}" width="{PANEL - _length(1):.1f}" ' \
              f'height="{bottom - TOP + 4}"/>'  # fmt: skip
        for tenths in (0, 5, 10, 15):
            across = x + _length(tenths / 10)
            yield f'<path class="grid" d="M{across:.1f} {TOP - 4}V{bottom}"/>'
            yield _text(across, bottom + 14, f"{tenths / 10:g}", "soft", middle=True)


def _draw_case(x: int, y: int, record: Record | None, peers: list[Peer]) -> Iterator[str]:
    if record is None:
        yield _text(x + 4, y + BAR, "not measured", "small soft")
        return
    for row, peer in enumerate(peers):
        best, top = record.best(*peer.kinds), y + row * STEP
        if best is None or best.median is None:
            continue
        length = _length(min(best.median, FULL))
        title = f"<title>{escape(best.competitor)}: {best.median:.2f}</title>"
        yield f'<rect class="c{PEERS.index(peer)}" x="{x}" y="{top}" width="{length:.1f}" height="{BAR}">{title}</rect>'
        kind = "small bold" if best.median > 1 else "small soft"
        across = x + length + 3
        if best.median > FULL - NUMBER / PANEL * FULL:
            across = x + length - NUMBER
        elif _length(1) - NUMBER < length < _length(1):
            across = x + _length(1) + 4
        yield _text(across, top + BAR - 0.5, f"{best.median:.2f}", kind)


def _length(ratio: float) -> float:
    return ratio / FULL * PANEL


def _text(x: float, y: float, words: str, kind: str = "", *, end: bool = False, middle: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named}{anchor}>{escape(words)}</text>'
