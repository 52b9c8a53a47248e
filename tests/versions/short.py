"""What a stranger does first, with the einc that is installed: `make test-newest-short` and `make test-lowest-short`.

    /path/to/environment/bin/python tests/versions/short.py

It runs commands in an empty folder, outside of the checkout: compiling, proving, running, explaining as text, JSON and
a page, text from a published model, its server, an import, and an exchange program. Each JSON document is parsed, and
nothing else may be on standard output.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[2] / "models"
EINC = str(Path(sys.executable).with_name("einc"))
PACKAGES = (
    "click",
    "highspy",
    "lark",
    "llvmlite",
    "msgpack",
    "msgspec",
    "numpy",
    "onednn-cpu-gomp",
    "starlette",
    "tokenizers",
)
STORY = "Mia"
SECONDS = 60


def run(*arguments: str, standard_input: bytes | None = None) -> bytes:
    """The standard output of a command, which must end with 0."""
    done = subprocess.run([EINC, *arguments], input=standard_input, capture_output=True, timeout=300)
    if done.returncode:
        sys.exit(f"einc {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr.decode()}")
    return done.stdout


def read_json(*arguments: str) -> dict[str, Any]:
    """The document that a command prints."""
    printed = run(*arguments, "--json")
    try:
        document = json.loads(printed)
    except ValueError as error:
        sys.exit(f"einc {' '.join(arguments)} --json printed no document ({error}): {printed[:200]!r}")
    if not isinstance(document, dict):
        sys.exit(f"einc {' '.join(arguments)} --json printed no object")
    return document


def require(holds: bool, promise: str) -> None:
    if not holds:
        sys.exit(f"failed: {promise}")


def try_plans() -> None:
    """A model is compiled, proved, run, explained and held to a contract."""
    run("models", "copy", "ffn")
    options = ("-m", "dgx-a100", "-D", "d_model=64", "-D", "d_ff=96", "-D", "tokens=40")
    summary = read_json("compile", "ffn.ein", *options, "-o", "ffn.bin")
    require(summary["devices"] == 8, "the plan has eight sites")
    plan = run("compile", "ffn.ein", *options, "-o", "-")
    require(plan == Path("ffn.bin").read_bytes(), "the same input gives the same bytes")
    require(read_json("verify", "ffn.bin")["valid"], "the plan is proved")
    outcome = read_json("run", "ffn.bin", "--inputs", "rand:0", "--weights", "rand:1", "--check")
    require("outputs" in outcome, "a run tells its outputs")
    require(b"predicted" in run("explain", "-", standard_input=plan), "a plan explains itself")
    require(read_json("explain", "ffn.bin")["predicted_ms"] > 0, "a time is predicted")
    run("explain", "ffn.bin", "--html", "report.html")
    require(Path("report.html").stat().st_size > 10_000, "a page is written")
    run("check", "ffn.bin", "--assert", "memory <= 1GiB")
    require(bool(read_json("describe", "ffn.bin")["inputs"]), "a plan describes itself")


def try_exchanges() -> None:
    run("models", "copy", "cube-mesh")
    program = run("exprog", "optimize", "cube-mesh.exprog", "-m", "dgx-v100", "--time-limit", "5")
    Path("fast.exprog").write_bytes(program)
    require(b"valid" in run("exprog", "check", "fast.exprog"), "an exchange program is valid")


def try_text() -> None:
    """A published model is imported, continued and served."""
    stories = str(MODELS / "stories")
    document = read_json("import", "hf", stories, "-o", "stories.ein")
    require(Path("stories.ein").exists(), f"an import writes a model: {document}")
    arguments = ("generate", stories, STORY, "--max-tokens", "8", "--plans", "plans")
    texts = [read_json(*arguments, "--sites", sites) for sites in ("1", "3")]
    require(texts[0]["sequences"][0]["text"] == texts[1]["sequences"][0]["text"], "sites do not change a text")
    server = subprocess.Popen(
        [EINC, "serve", stories, "--port", "0", "--plans", "plans"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        answer = ask(server)
        require(bool(answer["choices"][0]["text"]), "a server answers")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=SECONDS)


def ask(server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the server answers to a request, once it has said where it listens."""
    assert server.stdout is not None
    told, limit = "", time.monotonic() + SECONDS
    while (match := re.search(r"http://[\d.]+:\d+", told)) is None:
        line = server.stdout.readline().decode()
        if not line or time.monotonic() > limit:
            sys.exit(f"the server does not say where it listens: {told}")
        told += line
    body = json.dumps({"model": "stories", "prompt": STORY, "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{match[0]}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started from a background ignores interrupts
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    print(f"Python {sys.version.split()[0]}, {', '.join(versions)}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for part in (try_plans, try_exchanges, try_text):
            begin = time.monotonic()
            part()
            print(f"{part.__name__}: passed in {time.monotonic() - begin:.0f} s")
        os.chdir("/")


if __name__ == "__main__":
    main()
