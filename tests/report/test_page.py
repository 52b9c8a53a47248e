"""The page of a plan as text: it has what `--json` has, the same plan gives the same page, and names stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from einc.machines.load import load_machine
from einc.report.document import explain
from einc.report.html.page import SCRIPTS, frame_plan_page, write_machine_page, write_plan_page
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle
from tests.support.layered_model import compile_layers
from tests.support.page_data import read_page_data, restore_parts

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u202eright to left \u05d0\u05d1",
    "x" * 10_000,
    "'\"&lt;{{ 7 * 7 }}{% raw %}",
    "line\nbreak\u2028\x00",
]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_layers().bundle


@pytest.fixture(scope="module")
def page(bundle: Bundle) -> str:
    return write_plan_page(bundle)


@pytest.fixture(scope="module")
def plain(bundle: Bundle) -> str:
    return write_plan_page(rename(bundle, "plain"), against=rename(bundle, "plainB"))


class Reader(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def rename(bundle: Bundle, name: str) -> Bundle:
    """The plan with this text wherever one may have any, and still different names where these must differ."""
    names = {tensor.name: f"{name}{number}" for number, tensor in enumerate(bundle.tensors)}
    machine = msgspec.json.decode(bundle.machine_file)
    fitting = name[:90] if name[:90].isprintable() else "machine"  # a machine file is refused otherwise
    machine["name"] = fitting
    for number, resource in enumerate(machine["resources"]):
        resource["name"] = f"{fitting}{number}"
    return msgspec.structs.replace(
        bundle,
        model=name,
        machine=fitting,
        machine_file=msgspec.json.encode(machine).decode(),
        producer=name,
        tensors=tuple(
            msgspec.structs.replace(tensor, name=names[tensor.name], stored=name) for tensor in bundle.tensors
        ),
        operations=tuple(
            msgspec.structs.replace(operation, name=names[operation.name], title=name, source=name, pin=name)
            for operation in bundle.operations
        ),
        tasks=tuple(msgspec.structs.replace(task, serves=names.get(task.serves, task.serves)) for task in bundle.tasks),
        report=b"",
    )


def test_the_page_has_the_document_of_the_json_option(bundle: Bundle, page: str) -> None:
    data = read_page_data(page)
    assert restore_parts(data) == json.loads(json.dumps(explain(bundle)))
    assert len(json.dumps(data["document"])) + len(json.dumps(data["shared"])) < len(json.dumps(explain(bundle)))
    assert f"{bundle.predicted_ms:.3g} ms" in Reader(page).text


def test_the_same_plan_gives_the_same_bytes(bundle: Bundle, page: str) -> None:
    assert write_plan_page(decode(encode(bundle))) == page


def test_the_browser_is_told_to_run_our_script_alone_and_to_load_nothing(page: str) -> None:
    reader = Reader(page)
    (policy,) = [e[1]["content"] for e in reader.elements if e[1].get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(reader.scripts[1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; ")
    assert [a["src"] for _, a in reader.elements if "src" in a] == []
    assert all((a["href"] or "").startswith("#") for _, a in reader.elements if "href" in a)
    assert not [a for _, a in reader.elements for name in a if name.startswith("on")]
    code = reader.scripts[1].replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", code)
    assert not re.search(r"new Function|fetch\(|import\(|XMLHttp|WebSocket|sendBeacon", code)
    assert len(SCRIPTS) == len(set(SCRIPTS))


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(bundle: Bundle, plain: str, name: str) -> None:
    compared = write_plan_page(rename(bundle, name), against=rename(bundle, name[:50] + "B"))
    ours, theirs = Reader(plain), Reader(compared)
    assert [tag for tag, _ in ours.elements] == [tag for tag, _ in theirs.elements]
    assert ours.scripts[1] == theirs.scripts[1]
    data = read_page_data(compared)
    assert restore_parts(data)["model"] == name
    assert data["tensors"][0][0].startswith(name)
    assert "49" not in theirs.text.split("on 4 sites")[0]


def test_a_machine_and_a_notebook_have_pages_too(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_machine("dgx-v100")
    data = read_page_data(write_machine_page(machine))
    assert [(r["name"], r["gbs"], len(r["pairs"])) for r in data["machine"]["resources"]] == [
        (r.name, r.gbs, len(r.pairs)) for r in machine.resources
    ]
    frame = Reader(frame_plan_page(bundle))
    ((tag, attributes),) = frame.elements
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == write_plan_page(bundle)
    monkeypatch.setattr("einc.report.html.page.MAX_FRAMED_TASKS", 1)
    ((_, attributes),) = Reader(frame_plan_page(bundle)).elements
    first = Reader(attributes["srcdoc"] or "")
    assert f"{bundle.predicted_ms:.3g} ms" in first.text
    assert [a.get("id") for tag, a in first.elements if tag == "section"] == ["answer"]
