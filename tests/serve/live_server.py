"""A served model as its users see it (make test-serve): OpenAI's own client, curl, signals, and hostile requests.

Results are compared with single runs over plans of one sequence.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from einc_runtime.generation.generator import Generator
from einc_runtime.generation.model_folder import ModelFolder
from einc_runtime.generation.sampling import Sampling
from einc_runtime.generation.slots import DecoderSlots
from tests.serve.running import STORIES, WAIT, Running, curl, serving
from tests.support.encoder_cases import write_encoder
from tests.support.generation_cases import make_sessions

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
OWL = "Mia the owl"
REQUESTS, THREADS = 200, 16
GROWTH = 48 << 20
"""Bytes by which the memory of a server may grow from its first requests to hundreds more."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of stories with a chat template that says nothing more, and sampling of its own."""
    folder = tmp_path_factory.mktemp("models") / "chatty"
    shutil.copytree(STORIES, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(
        json.dumps({**settings, "do_sample": True, "temperature": 0.8, "top_p": 0.95})
    )
    return folder


@pytest.fixture(scope="module")
def stories(plans: Path) -> Iterator[Running]:
    with serving(STORIES, "--batch", 6, "--plans", plans) as server:
        yield server
        assert server.end(signal.SIGTERM) == 0
        assert [line for line in server.lines if "bug" in line or "Traceback" in line] == []


@pytest.fixture(scope="module")
def alone(plans: Path) -> Callable[[str, int, Sampling, tuple[str, ...]], tuple[str, str | None]]:
    """The text of a run with nothing beside it."""
    step, *pieces = make_sessions(STORIES, plans, (1, 512, (32, 128)))
    folder = ModelFolder(str(STORIES))
    generator = Generator(step, pieces, tokenizer=folder.read_tokenizer(), end_tokens=folder.read_end_tokens())

    def run(prompt: str, max_tokens: int, sampling: Sampling, stops: tuple[str, ...]) -> tuple[str, str | None]:
        (found,) = generator.generate([prompt], max_tokens, sampling, stops)
        return found.text, found.ended

    return run


def connect(server: Running, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none", timeout=WAIT, **options)


@dataclass(frozen=True)
class Ask:
    prompt: str
    max_tokens: int
    sampling: Sampling
    stops: tuple[str, ...]
    is_stream: bool
    is_cancelled: bool

    def send(self, client: openai.OpenAI, model: str) -> tuple[str, str | None] | None:
        """The text and why it ended; None where the client has left after the first token."""
        options: dict[str, Any] = {
            "model": model, "prompt": self.prompt, "max_tokens": self.max_tokens, "stop": list(self.stops) or None,
            "temperature": self.sampling.temperature, "top_p": self.sampling.top_p, "seed": self.sampling.seed,
        }  # fmt: skip
        if not self.is_stream:
            (choice,) = client.completions.create(**options).choices
            return choice.text, choice.finish_reason
        text, ended = "", None
        with client.completions.create(**options, stream=True) as stream:
            for chunk in stream:
                if self.is_cancelled:
                    return None
                text, ended = text + chunk.choices[0].text, chunk.choices[0].finish_reason
        return text, ended


def make_asks(count: int, seed: int) -> list[Ask]:
    draw = random.Random(seed)
    starts = ["Mia the fox", "Otto", "One day", "Tom the frog lives in the", "She finds a", "Mia"]
    story = (STORIES / "owl.txt").read_text()
    asks = []
    for number in range(count):
        prompt = draw.choice(starts) if number % 3 else OWL + story[: draw.randint(5, 240)]
        sampling = Sampling(draw.choice([0.0, 0.7, 1.2]), draw.choice([1.0, 0.9]), draw.randint(0, 5))
        stops = draw.choice([(), (), ("honey", "home."), ("zzz",)])
        cancelled = number % 5 == 4
        asks.append(Ask(prompt, draw.randint(1, 60), sampling, stops, cancelled or number % 2 == 0, cancelled))
    return asks


def test_200_requests_of_16_threads_are_those_of_single_runs(stories: Running, alone: Callable[..., Any]) -> None:
    """One in five leaves after its first token. No slot and no memory is lost."""
    client = connect(stories)
    for ask in make_asks(20, 1):
        ask.send(client, stories.model)
    before, memory = wait_until_idle(stories), stories.resident()
    for seed in (2, 3):
        asks = make_asks(REQUESTS, seed)
        with ThreadPoolExecutor(THREADS) as threads:
            found = list(threads.map(lambda ask: ask.send(client, stories.model), asks))
        known: dict[Any, Any] = {}
        for ask, result in zip(asks, found, strict=True):
            key = (ask.prompt, ask.max_tokens, ask.sampling, ask.stops)
            if result is not None:
                known[key] = known.get(key) or alone(*key)
                assert result == known[key], ask
        assert sum(result is None for result in found) == REQUESTS // 5
    after = wait_until_idle(stories)
    ended = Counter({name: after[name] - before[name] for name in after if name.startswith("einc_sequences_total")})
    assert ended['einc_sequences_total{ended="failed"}'] == 0
    assert ended.total() == 2 * REQUESTS
    assert after["einc_decode_tokens_total"] > before["einc_decode_tokens_total"]
    growth = stories.resident() - memory
    print(f"memory grew by {growth / 2**20:.1f} MiB over {2 * REQUESTS} requests; {dict(ended)}")
    assert growth < GROWTH


def wait_until_idle(server: Running) -> dict[str, float]:
    limit = time.monotonic() + WAIT
    while True:
        found = server.metrics()
        if found["einc_sequences_running"] == found["einc_sequences_waiting"] == 0:
            return found
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_reproducible_logits_have_the_same_bits_beside_other_texts(plans: Path) -> None:
    """Of 30 tokens, in every slot of three and alone, while others come, go on and leave."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(1, 400, 45).tolist()

    def follow(slots: DecoderSlots, slot: int, most: int) -> bytes:
        for other in range(len(slots.lengths)):
            slots.end(other)
        logits = [slots.append({slot: prompt})[slot]]
        for _ in range(30):
            others = [other for other in range(len(slots.lengths)) if other != slot and draw.random() < 0.7]
            for other in others:
                if slots.lengths[other] > 300 or draw.random() < 0.2:
                    slots.end(other)
            rows = {other: draw.integers(1, 400, draw.integers(1, most)).tolist() for other in others}
            logits.append(slots.append({**rows, slot: [int(logits[-1].argmax())]})[slot])
        return np.stack(logits).tobytes()

    found = set()
    for batch in (1, 3):
        step, *pieces = make_sessions(STORIES, plans, (batch, 512, (32, 128)), reproducible=True)
        slots = DecoderSlots(step, pieces)
        found |= {follow(slots, slot, most) for slot in range(batch) for most in (2, 100)}
    assert len(found) == 1


def test_the_client_gets_models_texts_streams_and_usage(stories: Running) -> None:
    client = connect(stories)
    assert [model.id for model in client.models.list()] == ["stories"]
    assert client.models.retrieve("stories").owned_by == "einc"
    whole = client.completions.create(model="stories", prompt=OWL, max_tokens=200)
    assert whole.choices[0].text == (STORIES / "owl.txt").read_text().rstrip("\n")
    assert whole.choices[0].finish_reason == "stop"
    *chunks, last = client.completions.create(
        model="stories", prompt=OWL, max_tokens=200, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert last.usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    several = client.completions.create(model="stories", prompt=[OWL, "Otto"], max_tokens=12)
    single = [client.completions.create(model="stories", prompt=one, max_tokens=12) for one in (OWL, "Otto")]
    assert [one.text for one in several.choices] == [one.choices[0].text for one in single]


def test_the_client_raises_what_is_wrong(stories: Running) -> None:
    client = connect(stories)
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        client.chat.completions.create(model="stories", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.BadRequestError, match="does not fit") as found:
        client.completions.create(model="stories", prompt=OWL * 200, max_tokens=5)
    assert found.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="continues texts"):
        client.embeddings.create(model="stories", input="a")
    with pytest.raises(openai.BadRequestError, match="n: "):
        client.completions.create(model="stories", prompt="a", n=1000)
    several = client.completions.create(model="stories", prompt=OWL, n=3, max_tokens=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2]


def test_chats_have_the_samples_of_the_folder(chatty: Path, plans: Path, alone: Callable[..., Any]) -> None:
    with serving(chatty, "--batch", 3, "--plans", plans, "--name", "fox") as server:
        client = connect(server)
        messages: Any = [{"role": "user", "content": OWL}]
        whole = client.chat.completions.create(model="fox", messages=messages, seed=7, max_completion_tokens=40)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == alone(
            OWL, 40, Sampling(0.8, 0.95, 7), ()
        )
        chunks = client.chat.completions.create(model="fox", messages=messages, seed=7, max_tokens=40, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
        greedy = client.chat.completions.create(model="fox", messages=messages, temperature=0, top_p=1)
        assert greedy.choices[0].message.content == (STORIES / "owl.txt").read_text().rstrip("\n")
        drawn = {
            client.chat.completions.create(model="fox", messages=messages, temperature=1.5).choices[0].message.content
            for _ in range(3)
        }
        assert len(drawn) == 3  # other seeds


def test_vectors_come_to_the_client(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    with serving(tmp_path, "--batch", 4, "--name", "bert", "--plans", tmp_path / "plans") as server:
        client = connect(server)
        texts = ["w1 w2 w3", "w7", " ".join(f"w{n}" for n in range(2, 39))] * 3
        found = client.embeddings.create(model="bert", input=texts).data  # in base64, as the client asks by itself
        numbers = client.embeddings.create(model="bert", input=texts, encoding_format="float").data
        single = [client.embeddings.create(model="bert", input=text).data[0] for text in texts[:3]]
        for number, one in enumerate(found):
            vector = np.array(one.embedding)
            assert one.index == number
            assert np.abs(vector - np.array(numbers[number].embedding)).max() < 1e-7
            assert np.abs(vector - np.array(single[number % 3].embedding)).max() < 1e-6
            assert abs(vector @ vector - 1) < 1e-5
        with pytest.raises(openai.BadRequestError, match="the model reads 40 at most"):
            client.embeddings.create(model="bert", input="w1 " * 41)
        with pytest.raises(openai.BadRequestError, match="makes vectors of texts"):
            client.completions.create(model="bert", prompt="a")
        assert server.end(signal.SIGTERM) == 0


def test_curl_gets_texts_and_streams(stories: Running) -> None:
    ask = {"model": "stories", "prompt": OWL, "max_tokens": 9}
    status, text = curl(f"{stories.url}/completions", data=ask)
    whole = json.loads(text)["choices"][0]["text"]
    assert status == 200
    status, text = curl(f"{stories.url}/completions", data={**ask, "stream": True})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert (status, events[-1]) == (200, "[DONE]")
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == whole
    assert stories.get("/health") == (200, '{"status":"ok"}')


def test_hostile_requests_are_one_error_each(stories: Running, tmp_path: Path) -> None:
    url = f"{stories.url}/completions"
    sound = {"model": "stories", "prompt": OWL, "max_tokens": 3}
    files = {
        "broken": (b'{"model": "stories", ', 400),
        "deep": (b"[" * 1_000_000, 400),
        "large": (json.dumps({**sound, "prompt": "x" * 10_000_000}).encode(), 413),
        "long": (json.dumps({**sound, "prompt": "x " * 1_500_000}).encode(), 400),
        "tokens": (json.dumps({**sound, "prompt": [5] * 500_000}).encode(), 400),
        "many": (json.dumps({**sound, "prompt": ["a"] * 2000}).encode(), 400),
        "more": (json.dumps({**sound, "max_tokens": 10**9}).encode(), 400),
        "types": (json.dumps({**sound, "temperature": {"a": []}}).encode(), 400),
        "binary": (bytes(range(256)) * 100, 400),
        "surrogate": (b'{"model": "stories", "prompt": "\\ud800"}', 400),
        "unknown": (json.dumps({**sound, "model": "\x1b[31m" * 99}).encode(), 404),
    }
    for name, (body, expected) in files.items():
        (tmp_path / name).write_bytes(body)
        status, text = curl(url, "--header", "expect:", file=tmp_path / name)
        error = json.loads(text)["error"]
        assert status == expected, (name, text)
        assert error.keys() == {"message", "type", "param", "code"}, name
        assert 0 < len(error["message"]) < 400, (name, error)
    for garbage in (b"\x16\x03\x01" + bytes(99), b"GET /" + b"a" * 200_000, b"POST /v1/completions HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", stories.port), WAIT) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1 << 16)
    assert curl(url, data=sound)[0] == 200
    assert stories.process.poll() is None


def test_curl_that_is_killed_frees_its_slot(plans: Path) -> None:
    with serving(STORIES, "--batch", 1, "--queue", 2, "--plans", plans) as server:
        ask = json.dumps(
            {"model": "stories", "prompt": ["Mia"] * 3, "max_tokens": 500, "temperature": 2, "stream": True}
        )
        command = ["curl", "--silent", "--no-buffer", "--data", ask, f"{server.url}/completions"]
        for _ in range(8):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline().startswith(b"data: ")
                process.kill()
            wait_until_idle(server)
        assert server.metrics()['einc_sequences_total{ended="cancelled"}'] >= 8
        assert server.end(signal.SIGTERM) == 0


def start_streams(server: Running, count: int) -> tuple[list[threading.Thread], list[Any], threading.Event]:
    """Streams in threads, what each gets, and an event of the first token of one."""
    client, found, begun = connect(server, max_retries=0), [None] * count, threading.Event()

    def ask(number: int) -> None:
        try:
            text = ""
            for chunk in client.completions.create(model="stories", prompt=OWL, max_tokens=200, stream=True):
                begun.set()
                text += chunk.choices[0].text
            found[number] = text
        except openai.OpenAIError as error:
            found[number] = error
        except Exception as error:  # connections that are cut
            found[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    assert begun.wait(WAIT)
    limit = time.monotonic() + WAIT
    while server.metrics()["einc_sequences_running"] + server.metrics()["einc_sequences_waiting"] < count:
        assert time.monotonic() < limit
    return threads, found, begun


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(plans: Path, number: int) -> None:
    """Five streams over one slot: all end as they would, while nothing new is taken."""
    with serving(STORIES, "--batch", 1, "--plans", plans, "--drain", WAIT) as server:
        threads, found, _ = start_streams(server, 5)
        server.process.send_signal(number)
        refused = 0
        while server.process.poll() is None and refused == 0:
            with pytest.raises(openai.OpenAIError) as error:  # noqa: PT012
                connect(server, max_retries=0).completions.create(model="stories", prompt="a", max_tokens=1)
                time.sleep(0.01)  # the signal is on its way
                raise openai.OpenAIError("taken")
            refused += str(error.value) != "taken"
        for thread in threads:
            thread.join(WAIT)
        assert server.wait() == 0
        assert found == [(STORIES / "owl.txt").read_text().rstrip("\n")] * 5
        assert server.lines[-1].startswith("einc: serving")


def test_an_interrupt_that_the_shell_ignores_stays_ignored(plans: Path) -> None:
    before = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    with serving(STORIES, "--batch", 1, "--plans", plans, before=before) as server:
        server.process.send_signal(signal.SIGINT)
        for _ in range(20):
            assert server.get("/health")[0] == 200
            time.sleep(0.05)
        assert server.end(signal.SIGTERM) == 0


def test_a_second_signal_ends_at_once(plans: Path) -> None:
    with serving(STORIES, "--batch", 1, "--plans", plans, "--drain", WAIT) as server:
        threads, found, _ = start_streams(server, 12)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
        assert server.end(signal.SIGTERM) == 143
        for thread in threads:
            thread.join(WAIT)
        assert any(isinstance(one, Exception) for one in found)
        assert server.lines[-1] == "einc: terminated"


def test_the_time_to_drain_ends(plans: Path) -> None:
    with serving(STORIES, "--batch", 1, "--plans", plans, "--drain", 0.001) as server:
        threads, found, _ = start_streams(server, 12)
        assert server.end(signal.SIGTERM) == 0
        for thread in threads:
            thread.join(WAIT)
        told = [one for one in found if isinstance(one, Exception)]
        assert told
        assert all("the server has ended before this request" in str(one) for one in told), told
