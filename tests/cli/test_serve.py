"""`einc serve`: the model that it serves is that of its folder, and what is missing is one error."""

from __future__ import annotations

import importlib.util
import json
import shlex
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einc.serving import server
from tests.support.generation_cases import DATA, PROMPTS, expected_tokens, write_folder
from tests.support.serving_cases import call_app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def test_answers_are_those_of_the_model(
    einc: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ends as by one signal, the second one as by two."""
    calls: list[Any] = []

    def run(app: Any, at: socket.socket, engine: Any, drain: float, started: Callable[[], None]) -> int | None:
        started()
        body = {"model": "m", "prompt": words(PROMPTS[1]), "max_tokens": 10}
        calls.append((call_app(app, "/v1/completions", body).json(), engine.size, drain))
        engine.close()
        return None if len(calls) == 1 else signal.SIGTERM

    monkeypatch.setattr(server, "run_server", run)
    command = ["serve", folder, "--port", 0, "--name", "m", "--batch", 2, "--plans", tmp_path, "--drain", 5]
    first = einc(*command)
    assert (first.code, first.out) == (0, "")
    assert "3 plans compiled" in first.err
    assert "einc: serving m at http://127.0.0.1:" in first.err
    again = einc(*command, "--max-tokens", 9)
    assert (again.code, again.err.splitlines()[-1]) == (143, "einc: terminated")
    # The text goes on after the prompt, and so begins with the space between them, as transformers decodes it.
    assert calls[0][0]["choices"][0]["text"] == f" {words(expected_tokens('llama-scaled')[1])}"
    assert calls[0][1:] == (2, 5.0)
    assert "max_tokens: at most 9" in calls[1][0]["error"]["message"]


def test_what_is_wrong_is_one_error(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    config = json.loads((DATA / "bert-words" / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    for name in ("model.safetensors", "tokenizer.json"):
        (encoder / name).write_bytes(((DATA / "bert-words" if name.startswith("m") else folder) / name).read_bytes())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases: list[tuple[list[object], int, str]] = [
            ([tmp_path / "nowhere"], 2, "there is no such file"),
            ([DATA / "llama-scaled"], 2, "there is no tokenizer.json"),
            ([folder, "--context", 65], 2, "--context: the model reads texts of 64 tokens at most"),
            ([folder, "--cache-tokens", 63], 2, "--cache-tokens: the longest text has 64 tokens"),
            ([folder, "--batch", 0], 2, "--batch"),
            ([folder, "--drain", 0], 2, "--drain"),
            ([folder, "--machine", "none"], 2, "there is no machine"),
            ([folder, "--host", "no host"], 2, "cannot listen at no host, port 0"),
            ([folder, "--port", taken.getsockname()[1]], 2, "cannot listen at 127.0.0.1"),
            ([encoder, "--max-tokens", 3], 2, "--max-tokens means nothing for an encoder"),
            ([encoder], 65, "only a BertModel is pooled"),
        ]
        for arguments, code, message in cases:
            result = einc("serve", "--port", 0, *arguments)
            assert (result.code, message in result.err) == (code, True), (arguments, result)


def test_packages_that_are_missing_are_named(
    einc: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("einc.cli.model_serving.find_spec", lambda name: None if name == "uvicorn" else find(name))
    result = einc("serve", folder)
    assert result.code == 69
    message, _, hint = result.err.partition("\n    hint: ")
    assert message.endswith("serving needs the package uvicorn")
    command, packages = hint.split(" install ")
    assert "pip" in command
    assert set(shlex.split(packages)) == {"jinja2>=3.1", "tokenizers>=0.21.1", "starlette>=0.40", "uvicorn>=0.30"}
