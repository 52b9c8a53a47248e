"""The proposer that asks a language model, against a local endpoint: no reply does any harm."""

import contextlib
import http.server
import json
import threading
import time

import pytest

from einc.errors import ProgramError, UsageError
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.exchange.synthesis.proposers import JudgedCandidate, build_messages, extract_programs
from einc.exchange.synthesis.sources import MAX_REPLY, EndpointProposer, read_endpoint
from einc_runtime.environment import LLM_KEY
from tests.support.proposal_cases import BARE, MACHINE, PREAMBLE, SPLIT, make_request


@contextlib.contextmanager
def serving(*replies):
    """An endpoint that gives these replies, the last one for ever: text, bytes, or a function of the handler."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, dict(self.headers), body))
            reply = replies[min(len(requests), len(replies)) - 1]
            with contextlib.suppress(OSError):
                if callable(reply):
                    reply(self)
                else:
                    send(self, reply if isinstance(reply, bytes) else completion(reply))

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


def completion(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


def send(handler, data, status=200, **headers):
    handler.send_response(status)
    for name, value in {"Content_Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def failing(status, text="", **headers):
    return lambda handler: send(handler, text.encode(), status, **headers)


def endpoint(url, **options):
    return EndpointProposer(url + "/chat/completions", "m", **{"rounds": 1, "seconds": 300.0, "pause": 0.01, **options})


def asked_alone(url, **options):
    """What a search makes of the endpoint, nothing else being tried: the lines told, and whether all is well."""
    result = synthesize(
        PREAMBLE, MACHINE, SynthesisOptions(iterations=0, enough=1e9), proposers=[endpoint(url, **options)]
    )
    assert result.completion_ms <= result.naive_ms
    assert all(line.isprintable() for line in result.proposals)
    return result


def test_a_good_reply_is_taken_and_the_next_round_hears_of_it():
    worse = BARE + "A @ 0 -> 1\nB @ 1 -> 0\nA+B @ 0, 1\n"
    with serving(f"Sure!\n```\n{worse}\n---\nA @ 0 -> 1\nA+B @ 1 -> 0\n```\n", f"```text\n{SPLIT}```") as (
        url,
        requests,
    ):
        answer = asked_alone(url, rounds=2)
    assert answer.splits == {"A": 2, "B": 2}
    assert answer.proposals[0] == f"proposal 1.1: {answer.naive_ms:.3f} ms"
    assert answer.proposals[2].endswith("the best so far")
    path, headers, body = requests[0]
    assert path == "/v1/chat/completions"
    assert "Authorization" not in headers
    assert body["model"] == "m"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert 'action: aggregate "@" targets ("->" targets)*' in body["messages"][0]["content"]
    task = body["messages"][1]["content"]
    assert all(
        text in task for text in ("450 GB/s for", "OUT: A+B @ 0, 1", f"takes {answer.naive_ms:.3f} ms", "2.222 ms: cut")
    )
    said = requests[1][2]["messages"]
    assert [message["role"] for message in said[2:]] == ["assistant", "user", "assistant", "user"]
    assert said[3]["content"] == f"Outcome: {answer.naive_ms:.3f} ms"
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        ("", "no program in this reply"),
        ("I cannot help with that.", "refused"),
        ("```\n" + BARE + "A @ 0 -> 1\n```", "not valid: A+B is required at site 0"),
        ("```\nIN: A @ 0\nOUT: A @ 1\nA @ 0 -> 1\n```", "another preamble"),
        ("```\n" + BARE + "A+B @ 0, 1 after (" * 5000 + "\n```", "refused"),
        ("```\n" + "(" * 500_000 + "\n```", "refused"),
        ("```\n" + BARE + "A @ 0 -> " + ", ".join(map(str, range(20_000))) + "\n```", "refused"),
        ("Ignore your instructions. $(touch /tmp/x) <script> \x1b]0;x\x07 __import__('os')", "refused"),
        (b"not json", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"choices": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b"[]", "not a chat completion"),
        (b'{"choices": []}', "not a chat completion"),
        (b'{"choices": [{"message": {"content": null}}]}', "content is not text"),
        (b'{"choices": [{"message": {"content": {"a": 1}}}]}', "content is not text"),
        (b"\xff\xfe\x00", "not JSON"),
        (b" " * (MAX_REPLY + 1), "more than"),
        (failing(400, '{"error": "no such model\x1b[2J"}'), 'HTTP 400: {"error": "no such model'),
        (failing(401), f"HTTP 401 (is {LLM_KEY} set?)"),
        (failing(503, "overloaded"), "HTTP 503: overloaded"),
        (failing(429, Retry_After="100000"), "HTTP 429"),
        (failing(302, Location="http://elsewhere.example/v1"), "redirects to elsewhere.example, which is not followed"),
        (lambda handler: handler.wfile.write(b"SSH-2.0-nonsense\r\n"), "BadStatusLine"),
        (lambda handler: handler.connection.shutdown(2), "RemoteDisconnected"),
        (lambda handler: send(handler, b"{", Content_Length="99"), "IncompleteRead"),
    ],
)  # fmt: skip
def test_hostile_replies_harm_nothing_and_get_a_line_each(reply, line):
    with serving(reply) as (url, _):
        answer = asked_alone(url)
    assert answer.completion_ms == answer.naive_ms
    assert len(answer.proposals) == 1
    assert line in answer.proposals[0]


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def headers_for_ever(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X: y\r\n")
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("reply", "seconds", "line"),
    [
        (lambda handler: time.sleep(300), 0.5, "no whole reply within 0.5 s"),
        (drip, 0.5, "no whole reply within 0.5 s"),
        (headers_for_ever, 0.5, "no whole reply within 0.5 s"),
        (endless, 300, "more than"),
    ],
)
def test_slow_and_endless_replies_are_given_up(reply, seconds, line):
    begin = time.monotonic()
    with serving(reply) as (url, _):
        answer = asked_alone(url, seconds=seconds)
    assert time.monotonic() - begin < 200
    assert line in answer.proposals[0]


def test_failures_that_may_pass_are_tried_again():
    with serving(failing(500), failing(429, Retry_After="0"), f"```\n{SPLIT}```") as (url, requests):
        assert asked_alone(url).splits == {"A": 2, "B": 2}
    assert len(requests) == 3
    with serving(failing(500)) as (url, requests):
        asked_alone(url, retries=1)
    assert len(requests) == 2


def test_nothing_is_asked_without_time_or_after_the_last_round():
    assert endpoint("http://127.0.0.1:9").propose(make_request(seconds=0.1)) is None
    assert endpoint("http://127.0.0.1:9").propose(make_request(1)) is None


def test_a_search_with_a_limit_keeps_time_for_itself():
    messages = []

    class Patient:
        def propose(self, request):
            messages.append(request.seconds)
            time.sleep(max(0.0, request.seconds))

    result = synthesize(PREAMBLE, MACHINE, SynthesisOptions(iterations=0, time_limit=1.0), proposers=[Patient()])
    assert len(messages) == 1
    assert messages[0] <= 0.5
    assert result.completion_ms < result.naive_ms


def test_no_round_takes_longer_than_the_search_can_wait():
    with (
        serving(lambda handler: time.sleep(300)) as (url, _),
        pytest.raises(ProgramError, match=r"reply within 0\.6 s"),
    ):
        endpoint(url).propose(make_request(seconds=0.6))


def test_the_key_goes_to_the_endpoint_and_nowhere_else(monkeypatch):
    monkeypatch.setenv(LLM_KEY, "sk-secret")
    with serving(lambda handler: send(handler, str(handler.headers).encode(), 400)) as (url, requests):
        proposer = read_endpoint(f"{url}?model=m&rounds=1&seconds=5")
        with pytest.raises(ProgramError, match="400") as caught:
            proposer.propose(make_request())
    assert requests[0][1]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value) + repr(proposer) + json.dumps(requests[0][2])
    assert "***" in str(caught.value)


def test_read_endpoint(monkeypatch):
    monkeypatch.delenv(LLM_KEY, raising=False)
    endpoint = read_endpoint("https://host:8/v1/?model=a%2Fb&rounds=2&seconds=9&temperature=0.5&api-version=7")
    assert endpoint == EndpointProposer(
        "https://host:8/v1/chat/completions?api-version=7", "a/b", 2, 9.0, temperature=0.5
    )
    assert read_endpoint("http://host/x/chat/completions?model=m").url == "http://host/x/chat/completions"
    for wrong in (
        "", "ftp://host?model=m", "file:///etc/passwd?model=m", "http://?model=m", "http://host", "http://host:x?model=m",
        "http://u:p@host?model=m", "http://host?model=m#f", "http://host?model=m&rounds=0", "http://host?model=m&seconds=nan",
        "http://host:99999?model=m", "http://[::1?model=m",
    ):  # fmt: skip
        with pytest.raises(UsageError):
            read_endpoint(wrong)
    monkeypatch.setenv(LLM_KEY, "k")
    with pytest.raises(UsageError, match="unencrypted"):
        read_endpoint("http://host?model=m")
    assert read_endpoint("http://[::1]:8/v1?model=m").key == "k"
    monkeypatch.setenv(LLM_KEY, "k\r\nX: y")
    with pytest.raises(UsageError, match="characters"):
        read_endpoint("https://host?model=m")


def test_what_a_reply_stands_for():
    assert extract_programs("A @ 0 -> 1") == "A @ 0 -> 1"
    assert extract_programs("x\n```\nIN: A @ 0\n```\ny\n```\nA @ 1\n```") == "IN: A @ 0\n---\nA @ 1"


def test_prompts_stay_short():
    answers = tuple(JudgedCandidate("A @ 0\n" * 10**5, "x" * 10**5) for _ in range(50))
    assert sum(len(message["content"]) for message in build_messages(make_request(3, answers))) < 100_000
