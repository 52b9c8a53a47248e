"""The API over batches whose texts are known: answers, streams, limits, and one error for each thing that is wrong."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einc.serving import app as app_module
from einc.serving import app as results_module
from einc.serving.answers import TextAnswer
from einc_runtime.generation.model_folder import ChatTemplate
from einc_runtime.generation.sampling import Sampling
from einc_runtime.generation.sequence_batch import NewToken, TokenLogprobs, find_logprobs
from tests.support.serving_cases import CREATED, NAME, PLACES, WAIT, EchoBatch, LengthBatch, Server, make_scope

COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(batch: Any, **options: Any) -> Server:
        made.append(Server(batch, tmp_path, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()
        assert server.bugs == []


@pytest.fixture
def echo(serve: Callable[..., Server]) -> Server:
    return serve(EchoBatch(2))


def make_usage(prompt: int, new: int) -> dict[str, Any]:
    """Of prompts of which nothing was there before."""
    total = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
    return {**total, "prompt_tokens_details": {"cached_tokens": 0}}


def test_completions_are_those_of_the_engine(echo: Server) -> None:
    found = echo.ask(COMPLETIONS, {"model": NAME, "prompt": "abc", "seed": -1}).json()
    assert found.pop("id").startswith("cmpl-")
    assert found.pop("created") > CREATED
    assert found == {
        "object": "text_completion",
        "model": NAME,
        "choices": [{"index": 0, "text": "cba", "logprobs": None, "finish_reason": "stop"}],
        "usage": make_usage(3, 4),
    }
    several = echo.ask(COMPLETIONS, {"model": NAME, "prompt": ["ab", "xyz", "q"], "max_tokens": 2}).json()
    assert [one["text"] for one in several["choices"]] == ["ba", "zy", "q"]
    assert [one["finish_reason"] for one in several["choices"]] == ["length", "length", "stop"]
    assert several["usage"] == make_usage(6, 6)
    tokens = echo.ask(COMPLETIONS, {"model": NAME, "prompt": [[97, 98], [99]]}).json()
    assert [one["text"] for one in tokens["choices"]] == ["ba", "c"]
    assert echo.ask(COMPLETIONS, {"model": NAME, "prompt": [100, 101]}).json()["choices"][0]["text"] == "ed"


def test_chats_are_written_in_the_template(echo: Server) -> None:
    document = {"model": NAME, "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": [
        {"type": "text", "text": "y"}, {"type": "text", "text": "z"}]}]}  # fmt: skip
    found = echo.ask(CHATS, document).json()
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": "<system>x<user>yz"[::-1]}
    assert (found["object"], choice["finish_reason"]) == ("chat.completion", "stop")
    short = echo.ask(CHATS, {**document, "max_completion_tokens": 2, "max_tokens": None}).json()
    assert (short["choices"][0]["message"]["content"], short["choices"][0]["finish_reason"]) == ("zy", "length")


def test_what_clients_of_vllm_send_is_taken(serve: Callable[..., Server]) -> None:
    batch = EchoBatch(2)
    server = serve(batch)
    ask = {
        "model": NAME, "messages": HELLO, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "logit_bias": {"7": 3}, "stop_token_ids": [9], "ignore_eos": True, "min_tokens": 2,
        "n": 2, "seed": 4, "priority": 1, "length_penalty": 1.0, "skip_special_tokens": True,
        "response_format": {"type": "text"}, "logprobs": True, "top_logprobs": 2, "max_tokens": 3,
    }  # fmt: skip
    answer = server.ask(CHATS, ask).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"] == make_usage(11, 6)
    first, second = sorted(batch.requests, key=lambda request: request.number)
    assert first.sampling == Sampling(0.0, 1.0, 4, 0, 0.1, 1.1, 0.5, -0.5, ((7, 3.0),)) == second.sampling
    assert (first.end_tokens, first.ignores_ends, first.min_tokens, first.logprobs) == ((9,), True, 2, 2)
    assert (first.joins, first.number, second.number) == (False, 0, 1)
    assert server.ask(COMPLETIONS, {"model": NAME, "prompt": ["a", "b"], "n": 2}).json()["choices"][2]["text"] == "b"
    assert batch.requests[-1].joins


def test_probabilities_are_told_in_both_forms() -> None:
    told = TokenLogprobs(-0.5, ((97, -0.5), (98, -1.5)))
    chat, completion = (TextAnswer(kind, "m", [3], chr) for kind in ("chat", "completion"))
    for answer in (chat, completion):
        answer.add(0, NewToken(0, 97, "", None, told))
    likely = [{"token": t, "logprob": p, "bytes": [ord(t)]} for t, p in (("a", -0.5), ("b", -1.5))]
    assert chat.whole()["choices"][0]["logprobs"] == {"content": [{**likely[0], "top_logprobs": likely}]}
    expected = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -1.5}]}
    assert completion.whole()["choices"][0]["logprobs"] == expected
    assert completion.chunks(0, NewToken(0, 97, "", None, told))[0]["choices"][0]["logprobs"] == expected
    wide = find_logprobs(np.array([0.0, 1.0, 3.0], "f4"), 1, 2)
    assert np.isclose(np.exp(wide.logprob), np.exp(1) / np.exp([0, 1, 3]).sum())
    assert [token for token, _ in wide.likely] == [2, 1]


def test_templates_get_tools_and_variables(serve: Callable[..., Server]) -> None:
    text = (
        "{{ tools[0].function.name }} {{ reasoning_effort }} {{ enable_thinking }} "
        "{% for m in messages %}{{ m.role[0] }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.x }}{% endif %}{{ m.tool_call_id }},{% endfor %}"
    )
    batch = EchoBatch(1)
    server = serve(batch, template=ChatTemplate(text, {}, "template"))
    call = {"id": "7", "type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}}
    messages = [
        *HELLO, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "6", "tool_call_id": "7"},
    ]  # fmt: skip
    ask = {
        "model": NAME, "messages": messages, "tools": [{"type": "function", "function": {"name": "g"}}],
        "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    assert server.ask(CHATS, ask).status == 200
    assert bytes(batch.requests[-1].tokens).decode() == "g low False u,a5,t7,"
    assert server.ask(CHATS, {**ask, "tool_choice": "none"}).status == 400  # this template cannot do without


def test_streams_say_the_same_in_chunks(echo: Server) -> None:
    ask = {"model": NAME, "prompt": ["abc", "de"], "stream": True, "stream_options": {"include_usage": True}}
    answer = echo.ask(COMPLETIONS, ask)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = answer.events()
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 7)
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["cba", "ed"]
    assert {chunk["id"] for chunk in chunks} == {usage["id"]}
    chat = echo.ask(CHATS, {"model": NAME, "messages": HELLO, "stream": True, "max_tokens": 3}).events()
    deltas = [chunk["choices"][0]["delta"] for chunk in chat]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "o"}, {"content": "l"}, {"content": "l"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chat] == [None] * 4 + ["length"]
    assert all("usage" not in chunk for chunk in chat)


def test_what_a_request_does_not_say_is_as_the_model_says(serve: Callable[..., Server]) -> None:
    batch = EchoBatch(2)
    server = serve(batch, sampling=Sampling(0.6, 0.9), max_tokens=20)
    asks: list[dict[str, Any]] = [
        {},
        {"temperature": 0, "seed": 3},
        {"top_p": 0.5, "max_tokens": 7, "stop": "x", "seed": -1},
        {"prompt": "a" * 39, "max_tokens": 2, "stop": ["x", "yz"]},
    ]
    for ask in asks:
        assert server.ask(COMPLETIONS, {"model": NAME, "prompt": "ab", **ask}).status == 200
    server.ask(CHATS, {"model": NAME, "messages": HELLO})
    server.ask(CHATS, {"model": NAME, "messages": [{"role": "user", "content": "a" * 30}]})
    found = [(one.sampling.temperature, one.sampling.top_p, one.max_tokens, one.stops) for one in batch.requests]
    assert found == [
        (0.6, 0.9, 16, ()),
        (0, 0.9, 16, ()),
        (0.6, 0.5, 7, ("x",)),
        (0.6, 0.9, 2, ("x", "yz")),
        (0.6, 0.9, 20, ()),
        (0.6, 0.9, PLACES + 1 - 36, ()),
    ]
    assert [one.sampling.seed for one in batch.requests[1:3]] == [3, 2**64 - 1]
    assert batch.requests[0].sampling.seed != batch.requests[3].sampling.seed  # drawn for each


def test_vectors_are_numbers_or_bytes(serve: Callable[..., Server]) -> None:
    server = serve(LengthBatch())
    found = server.ask(EMBEDDINGS, {"model": NAME, "input": ["abc", "z"]}).json()
    expected = [np.array([3, 97, 0.1], "f4"), np.array([1, 122, 0.1], "f4")]
    assert [one["embedding"] for one in found["data"]] == [vector.tolist() for vector in expected]
    assert (found["object"], found["usage"]) == ("list", {"prompt_tokens": 4, "total_tokens": 4})
    coded = server.ask(EMBEDDINGS, {"model": NAME, "input": "abc", "encoding_format": "base64"}).json()
    assert base64.b64decode(coded["data"][0]["embedding"]) == expected[0].tobytes()
    for path, ask in ((COMPLETIONS, {"prompt": "a"}), (CHATS, {"messages": HELLO})):
        refused = server.ask(path, {"model": NAME, **ask})
        assert (refused.status, "makes vectors of texts" in refused.json()["error"]["message"]) == (400, True)


def test_long_lists_of_texts_are_read_in_turns(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, and a list that has begun waits where there is no room."""
    monkeypatch.setattr(results_module, "PAUSE", 0.001)
    gate = threading.Semaphore(0)
    server = serve(LengthBatch(gate), queue=1)
    asks = [json.dumps({"model": NAME, "input": ["x" * (1 + at % 30) for at in range(count)]}).encode()
            for count in (7, 2)]  # fmt: skip

    async def run() -> None:
        long = asyncio.create_task(server.call(EMBEDDINGS, asks[:1]))
        await _until(lambda: server.engine.counts.running == 2)
        refused = await server.call(EMBEDDINGS, asks[1:])
        assert refused.status == 429
        gate.release(100)
        data = (await long).json()["data"]
        assert [one["embedding"][0] for one in data] == [1, 2, 3, 4, 5, 6, 7]
        first, second = await asyncio.gather(*(server.call(EMBEDDINGS, asks[:1]) for _ in range(2)))
        assert {first.status, second.status} <= {200, 429}
        assert 200 in (first.status, second.status)

    asyncio.run(run())


def test_models_health_and_metrics(echo: Server) -> None:
    model = {"id": NAME, "object": "model", "created": CREATED, "owned_by": "einc"}
    assert echo.ask("/v1/models").json() == {"object": "list", "data": [model]}
    assert echo.ask(f"/v1/models/{NAME}").json() == model
    assert echo.ask("/v1/models/a/b").json()["error"]["code"] == "model_not_found"
    assert echo.ask("/health").json() == {"status": "ok"}
    echo.ask(COMPLETIONS, {"model": NAME, "prompt": "a"})
    echo.ask(COMPLETIONS, {"model": "x", "prompt": "a"})
    echo.ask("/v1/" + "x" * 50)
    page = echo.ask("/metrics")
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = page.body.decode().splitlines()
    for line in (
        'einc_requests_total{path="/v1/completions",status="200"} 1',
        'einc_requests_total{path="/v1/completions",status="404"} 1',
        'einc_requests_total{path="other",status="404"} 2',
        'einc_request_seconds_count{path="/v1/completions"} 2',
        'einc_sequences_total{ended="finished"} 1',
        "einc_first_token_seconds_count 1",
        "einc_slots 2",
        "einc_sequences_running 0",
    ):
        assert line in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    echo.engine.refuse()
    assert (echo.ask("/health").status, echo.ask("/health").json()) == (503, {"status": "draining"})
    refused = echo.ask(COMPLETIONS, {"model": NAME, "prompt": "a"})
    assert (refused.status, refused.json()["error"]["code"]) == (503, "shutting_down")


WRONG: list[tuple[str, Any, int, str, str | None]] = [
    (COMPLETIONS, [], 400, "expected an object in braces, found a list of 0 items", None),
    (COMPLETIONS, {"prompt": "a"}, 400, "model: a request has to name one", "model"),
    (COMPLETIONS, {"model": 3, "prompt": "a"}, 400, "model: expected a string, found 3", "model"),
    (COMPLETIONS, {"model": "gpt", "prompt": "a"}, 404, "there is no model 'gpt': this server has 'echo'", "model"),
    (COMPLETIONS, {"prompt": None}, 400, "prompt: expected 1 to 2,048 texts, found null", "prompt"),
    (COMPLETIONS, {"prompt": []}, 400, "prompt: expected 1 to 2,048 texts", "prompt"),
    (COMPLETIONS, {"prompt": ""}, 400, "a text has no tokens", None),
    (COMPLETIONS, {"prompt": [[]]}, 400, "a text has no tokens", None),
    (COMPLETIONS, {"prompt": ["a", 3]}, 400, "prompt: expected texts, or lists of tokens, found 3", "prompt"),
    (COMPLETIONS, {"prompt": [3, "a"]}, 400, "prompt: expected texts, or lists of tokens", "prompt"),
    (COMPLETIONS, {"prompt": [True]}, 400, "prompt: expected texts, or lists of tokens, found true", "prompt"),
    (COMPLETIONS, {"prompt": [256]}, 400, "there are 256 tokens", None),
    (COMPLETIONS, {"prompt": "\ud800"}, 400, "the tokenizer cannot read a prompt", None),
    (COMPLETIONS, {"prompt": ["a"] * 7}, 400, "7 are too many at once: at most 6 run and wait", None),
    (COMPLETIONS, {"prompt": "a" * 41}, 400, "a prompt of 41 tokens and 16 new ones does not fit: a text has 40", None),
    (COMPLETIONS, {"prompt": "a" * 30}, 400, "30 tokens and 16 new ones does not fit", None),
    (COMPLETIONS, {"max_tokens": 41}, 400, "max_tokens: at most 40 here, found 41", "max_tokens"),
    (COMPLETIONS, {"max_tokens": 0}, 400, "max_tokens: expected an integer from 1 to", "max_tokens"),
    (COMPLETIONS, {"max_tokens": 1.5}, 400, "max_tokens: expected an integer", "max_tokens"),
    (COMPLETIONS, {"max_tokens": True}, 400, "max_tokens: expected an integer", "max_tokens"),
    (COMPLETIONS, {"temperature": "hot"}, 400, "temperature: expected a number from 0 to 2", "temperature"),
    (COMPLETIONS, {"temperature": 2.1}, 400, "temperature: expected a number from 0 to 2, found 2.1", "temperature"),
    (COMPLETIONS, {"top_p": 0}, 400, "top_p: expected a number above 0", "top_p"),
    (COMPLETIONS, {"seed": 2**63}, 400, "seed: expected an integer", "seed"),
    (COMPLETIONS, {"stop": [""]}, 400, "stop: expected up to 16 strings", "stop"),
    (COMPLETIONS, {"stop": ["a"] * 17}, 400, "stop: expected up to 16 strings", "stop"),
    (COMPLETIONS, {"stream": "yes"}, 400, "stream: expected true or false", "stream"),
    (COMPLETIONS, {"stream_options": {}}, 400, "they mean nothing without stream", "stream_options"),
    (COMPLETIONS, {"stream": True, "stream_options": 1}, 400, "expected an object with", "stream_options"),
    (COMPLETIONS, {"n": 7}, 400, "7 are too many at once: at most 6 run and wait", None),
    (COMPLETIONS, {"n": True}, 400, "n: expected an integer from 1 to 128, found true", "n"),
    (COMPLETIONS, {"logprobs": 21}, 400, "logprobs: expected an integer from 0 to 20, found 21", "logprobs"),
    (COMPLETIONS, {"repetition_penalty": 0}, 400, "repetition_penalty: expected a number above 0", None),
    (COMPLETIONS, {"logit_bias": {"a": 1}}, 400, "logit_bias: expected numbers of tokens", "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"1": 101}}, 400, "logit_bias: expected numbers from -100", "logit_bias"),
    (COMPLETIONS, {"stop_token_ids": ["</s>"]}, 400, "stop_token_ids: expected a list of", "stop_token_ids"),
    (COMPLETIONS, {"best_of": 2}, 400, "best_of: only 1 is supported, found 2", "best_of"),
    (COMPLETIONS, {"skip_special_tokens": False}, 400, "only true is supported, found false", "skip_special_tokens"),
    (COMPLETIONS, {"response_format": {"type": "json_schema"}}, 400, "expected a json_schema with", "response_format"),
    (COMPLETIONS, {"response_format": {"type": "grammar"}}, 400, "a type of text, json_object, json_schema, found "
     '"grammar"', "response_format"),
    (COMPLETIONS, {"response_format": {"type": "json_object"}}, 400, "has no grammars of JSON", "response_format"),
    (CHATS, {"messages": HELLO, "top_logprobs": 2}, 400, "they mean nothing without logprobs", "top_logprobs"),
    (CHATS, {"messages": HELLO, "tool_choice": "required"}, 400, "only none and auto are supported", "tool_choice"),
    (CHATS, {"messages": HELLO, "reasoning_effort": "huge"}, 400, "expected one of none, minimal", "reasoning_effort"),
    (CHATS, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, 400, "without messages", None),
    (COMPLETIONS, {"promt": "a"}, 400, "there is no field 'promt'", "promt"),
    (CHATS, {"messages": []}, 400, "messages: expected a list of messages", "messages"),
    (CHATS, {"messages": HELLO, "tools": [1]}, 400, "tools: expected a list of objects", "tools"),
    (CHATS, {"messages": ["a"]}, 400, "messages[0]: expected an object with role", "messages[0]"),
    (CHATS, {"messages": [{"role": "function", "content": "a"}]}, 400, "messages[0].role: expected one of", None),
    (CHATS, {"messages": [{"role": "user"}]}, 400, "messages[0].content: expected a text, found null", None),
    (CHATS, {"messages": [{**HELLO[0], "tool_calls": [1]}]}, 400, "tool_calls: expected a list of objects", None),
    (CHATS, {"messages": [{**HELLO[0], "audio": {"id": 1}}]}, 400, '"audio" are not supported', "messages[0]"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only parts of the type", None),
    (CHATS, {"messages": [{"role": "user", "content": "a" * 50}]}, 400, "56 tokens does not fit", None),
    (EMBEDDINGS, {"input": "a"}, 400, "'echo' continues texts (/v1/completions), and makes no vectors", None),
    (EMBEDDINGS, {"input": "a", "dimensions": 3}, 400, "dimensions: vectors have as many", "dimensions"),
    (EMBEDDINGS, {"input": "a", "encoding_format": "x"}, 400, "expected float or base64", "encoding_format"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "ask", "status", "message", "param"), WRONG)
def test_what_is_wrong_is_one_error(
    echo: Server, path: str, ask: Any, status: int, message: str, param: str | None
) -> None:
    sound = {"model": NAME, "prompt": "a"} if path == COMPLETIONS else {"model": NAME}
    if isinstance(ask, dict) and ask != {"prompt": "a"}:
        ask = {**sound, **ask}
    answer = echo.ask(path, ask)
    assert answer.status == status, answer.body
    assert answer.json().keys() == {"error"}
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    assert echo.engine.counts.submitted == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON: not JSON: Expecting property name"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"model": NaN}', "NaN is not a number of JSON"),
        (b'{"model": "a", "model": "b"}', "the name 'model' is given twice"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
    ],
)
def test_broken_json_is_one_error(echo: Server, body: bytes, message: str) -> None:
    answer = echo.ask(COMPLETIONS, body=body, method="POST")
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert message in answer.json()["error"]["message"]


def test_large_bodies_are_refused_while_they_come(echo: Server) -> None:
    part = b"x" * (1 << 20)
    answer = asyncio.run(echo.call(COMPLETIONS, [part] * 5))
    assert (answer.status, answer.json()["error"]["message"]) == (413, "the body has more than 4 MiB")
    whole = json.dumps({"model": NAME, "prompt": "y" * (3 << 20)}).encode()
    tokens = asyncio.run(echo.call(COMPLETIONS, [whole]))
    error = tokens.json()["error"]
    assert (tokens.status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"] == "a text of 3,145,728 characters does not fit into 40 tokens"


def test_bodies_together_are_bounded(echo: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bodies of which one half has come, where there is room for two halves."""
    monkeypatch.setattr(app_module, "MAX_BODIES", 250)
    body = json.dumps({"model": NAME, "prompt": "ab"}).encode()
    half = body.ljust(100)

    async def run() -> None:
        more, sent = asyncio.Event(), [list[Any](), list[Any]()]

        def ask(into: list[Any]) -> asyncio.Task[None]:
            parts = [{"type": "http.request", "body": b"", "more_body": False},
                     {"type": "http.request", "body": half, "more_body": True}]  # fmt: skip

            async def receive() -> Any:
                if len(parts) == 1:
                    await more.wait()
                return parts.pop() if parts else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                into.append(message)

            return asyncio.create_task(echo.app(make_scope(COMPLETIONS), receive, send))

        tasks = [ask(into) for into in sent]
        for _ in range(20):
            await asyncio.sleep(0)
        third = await echo.call(COMPLETIONS, [half])
        assert (third.status, third.json()["error"]["code"]) == (503, "overloaded")
        more.set()
        await asyncio.gather(*tasks)
        assert [into[0]["status"] for into in sent] == [200, 200]
        assert (await echo.call(COMPLETIONS, [half])).status == 200

    asyncio.run(run())


def test_a_body_that_never_ends_is_not_waited_for(echo: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_BODY_SECONDS", 0.01)

    async def never() -> Any:
        await asyncio.Event().wait()

    async def ask() -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await echo.app(make_scope(COMPLETIONS), never, send)
        return int(sent[0]["status"])

    assert asyncio.run(ask()) == 408


def test_other_paths_and_methods_are_errors_of_the_same_form(echo: Server) -> None:
    assert echo.ask("/v1/nothing").json()["error"]["code"] == "not_found"
    wrong = echo.ask(COMPLETIONS, method="DELETE")
    assert (wrong.status, wrong.headers["allow"], wrong.json()["error"]["message"]) == (
        405, "POST", "Method Not Allowed",
    )  # fmt: skip


def test_a_model_without_a_template_has_no_chats(serve: Callable[..., Server]) -> None:
    answer = serve(EchoBatch(1), template=None).ask(CHATS, {"model": NAME, "messages": HELLO})
    assert (answer.status, "no chat template" in answer.json()["error"]["message"]) == (400, True)


def test_failures_are_errors_before_and_within_a_stream(echo: Server) -> None:
    ask = {"model": NAME, "prompt": [1, 98, 99]}
    whole = echo.ask(COMPLETIONS, ask)
    assert (whole.status, whole.json()["error"]["type"]) == (500, "server_error")
    assert whole.json()["error"]["message"] == "the logits are not finite"
    *chunks, last = echo.ask(COMPLETIONS, {**ask, "stream": True}).events()
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["c", "b"]
    assert last["error"]["message"] == "the logits are not finite"


def test_a_bug_is_reported_and_answered(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(EchoBatch(1))
    monkeypatch.setattr(app_module, "TextAnswer", None)
    answer = server.ask(COMPLETIONS, {"model": NAME, "prompt": "a"})
    assert (answer.status, answer.json()["error"]["message"]) == (500, "a bug in einc: TypeError")
    assert [type(error) for error in server.bugs] == [TypeError]
    server.bugs.clear()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_stream", [False, True])
def test_who_leaves_frees_the_slot(serve: Callable[..., Server], is_stream: bool) -> None:
    gate = threading.Semaphore(0)
    batch = EchoBatch(1, gate)
    server = serve(batch)
    body = json.dumps({"model": NAME, "prompt": "abcdefgh", "stream": is_stream}).encode()

    async def run() -> None:
        leave = asyncio.Event()
        running = asyncio.create_task(server.call(COMPLETIONS, [body], leave=leave))
        waiting = asyncio.create_task(server.call(COMPLETIONS, [body]))
        await _until(lambda: server.engine.counts.submitted == 2)
        gate.release()
        await asyncio.sleep(0)
        leave.set()
        left = await running
        assert left.status == (200 if is_stream else 499)
        gate.release(100)
        answer = await waiting
        parts = answer.events() if is_stream else [answer.json()]
        assert "".join(part["choices"][0]["text"] for part in parts) == "hgfedcba"

    asyncio.run(run())
    assert server.engine.wait(WAIT)
    counts = server.engine.counts
    assert (counts.cancelled, counts.finished, batch.running) == (1, 1, {})


def test_a_full_queue_is_said_at_once(serve: Callable[..., Server]) -> None:
    gate = threading.Semaphore(0)
    server = serve(EchoBatch(1, gate), queue=1)
    body = json.dumps({"model": NAME, "prompt": "ab"}).encode()

    async def run() -> None:
        tasks = [asyncio.create_task(server.call(COMPLETIONS, [body])) for _ in range(2)]
        await _until(lambda: server.engine.counts.submitted == 2)
        refused = await server.call(COMPLETIONS, [body])
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert "no 1 more may wait; try again later" in error["message"]
        gate.release(100)
        assert [(await task).json()["choices"][0]["text"] for task in tasks] == ["ba", "ba"]

    asyncio.run(run())


def test_a_client_that_reads_nothing_is_left(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_WRITE_SECONDS", 0.01)
    server = serve(EchoBatch(1))
    body = [{"type": "http.request", "body": json.dumps({"model": NAME, "prompt": "abc", "stream": True}).encode()}]

    async def receive() -> Any:
        return body.pop() if body else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message.get("body"):
            await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(server.app(make_scope(COMPLETIONS), receive, send), WAIT))
    assert server.engine.wait(WAIT)
