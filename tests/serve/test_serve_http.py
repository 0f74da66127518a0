"""The real server over real sockets: OpenAI's client, limits, floods, disconnects, security."""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "generate"))
from tiny import LIMITS, NAME, running_server
from waiting import HANG

from windtunnel.generate import BatchedGenerator

Served = tuple[str, BatchedGenerator]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="unused", max_retries=0, timeout=HANG) as made:
        yield made


def post(url: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"model": NAME, **fields}, timeout=HANG)


def idle(engine: BatchedGenerator, seconds: float = 300) -> bool:
    deadline = time.monotonic() + seconds
    while (engine.running or engine.waiting) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not (engine.running or engine.waiting)


def test_openai_client_completes(client: openai.OpenAI) -> None:
    result = client.completions.create(model=NAME, prompt="H12+34B", max_tokens=12, temperature=0)
    (choice,) = result.choices
    assert (choice.finish_reason, len(choice.text), result.object) == ("length", 12, "text_completion")
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens) == (8, 12, 20)


def test_openai_client_streams_the_same_text(client: openai.OpenAI) -> None:
    arguments = {"model": NAME, "prompt": "H12+34B", "max_tokens": 30, "seed": 4, "stop": ["LL"]}
    whole = client.completions.create(**arguments)
    chunks = list(client.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_lists_ids_n_echo_and_logprobs(client: openai.OpenAI) -> None:
    texts = client.completions.create(model=NAME, prompt=["H1+", "H2+"], n=2, max_tokens=5, temperature=0, echo=True)
    assert [c.index for c in texts.choices] == [0, 1, 2, 3]
    assert [c.text[:3] for c in texts.choices] == ["H1+", "H1+", "H2+", "H2+"]
    assert texts.choices[0].text == texts.choices[1].text
    by_ids = client.completions.create(model=NAME, prompt=[0, 14, 2, 11], max_tokens=5, temperature=0)
    assert by_ids.usage.prompt_tokens == 4
    scored = client.completions.create(model=NAME, prompt="H1+", max_tokens=2, temperature=0, echo=True, logprobs=2)
    logprobs = scored.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(p < 0 for p in logprobs.token_logprobs[1:])
    assert logprobs.tokens == ["<|bos|>", *scored.choices[0].text]
    assert logprobs.text_offset == [0, 0, 1, 2, 3, 4]
    score_only = client.completions.create(model=NAME, prompt="H1+", max_tokens=0, echo=True, logprobs=0)
    assert (score_only.choices[0].text, score_only.usage.completion_tokens) == ("H1+", 0)
    different = client.completions.create(model=NAME, prompt="H1+", n=4, max_tokens=20, seed=1)
    assert len({c.text for c in different.choices}) == 4


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="tiny-run"):
        client.completions.create(model="gpt-4", prompt="H")


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"max_tokens": 100_000}, "max_tokens", "at most 200"),
        ({"max_tokens": -1}, "max_tokens", "integer below minimum value. Expected a value >= 0, but got -1 instead."),
        ({"max_tokens": "5"}, "max_tokens", "Invalid type for 'max_tokens': expected an integer, but got a string instead."),
        ({"temperature": 2.1}, "temperature", "decimal above maximum value. Expected a value <= 2"),
        ({"top_p": 0}, "top_p", "Expected a value > 0"),
        ({"top_k": -1}, "top_k", "below minimum value"),
        ({"n": 129}, "n", "128"),
        ({"n": 13}, "prompt", "at most 12"),
        ({"logprobs": 6}, "logprobs", "5"),
        ({"stop": ["a"] * 5}, "stop", "array too long. Expected an array with maximum length 4, but got an array with length 5"),
        ({"stop": ""}, "stop", "string too short. Expected a string with minimum length 1"),
        ({"best_of": 2}, "best_of", "1"),
        ({"presence_penalty": 0.5}, "presence_penalty", "0"),
        ({"logit_bias": {"1": 5}}, "logit_bias", "only {}"),
        ({"temprature": 1}, "temprature", "unknown parameter"),
        ({"prompt": "what?"}, "prompt", "'w' (U+0077)"),
        ({"prompt": "\ud800"}, "prompt", "U+D800"),
        ({"prompt": "1" * 500}, "prompt", "the model's context is 128"),
        ({"prompt": "1" * 60_000}, "prompt", "at most 50,000"),
        ({"prompt": [1, 99]}, "prompt", "token id 99"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": {"a": 1}}, "prompt", "string"),
        ({"stream": 1}, "stream", "boolean"),
    ],
)
def test_wrong_parameters_are_400_and_named(served: Served, fields: dict[str, object], param: str, part: str) -> None:
    body = json.dumps({"model": NAME, "prompt": "H", **fields}).encode()
    response = httpx.post(f"{served[0]}/v1/completions", content=body, timeout=HANG)
    assert response.status_code == 400
    if fields.get("prompt") == "\ud800":
        return  # half a surrogate pair is no JSON text to some parsers
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert part in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1", b"\xff\xfe", b'{"model": "x", "prompt": NaN', b"[" * 100_000])
def test_invalid_json_is_400(served: Served, body: bytes) -> None:
    response = httpx.post(f"{served[0]}/v1/completions", content=body, timeout=HANG)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'{"model": "x", "temperature": NaN}', b"{}"])
def test_json_of_the_wrong_kind_is_400(served: Served, body: bytes) -> None:
    assert httpx.post(f"{served[0]}/v1/completions", content=body, timeout=HANG).status_code == 400


def test_null_means_the_default(served: Served) -> None:
    response = post(served[0], prompt="H", max_tokens=3, temperature=None, top_p=None, n=None, stop=None, seed=None, stream=None)
    assert response.status_code == 200


def test_unknown_paths_and_methods(served: Served) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/completions", 405), ("GET", "/static/../app.py", 404)):
        response = httpx.request(method, served[0] + path)
        assert response.status_code == status
        assert "error" in response.json()
    assert httpx.get(f"{served[0]}/docs").status_code == 404


def test_ten_megabytes_are_refused_unread(served: Served) -> None:
    url, engine = served
    response = post(url, prompt="1" * 10_000_000)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
    # Announced but never sent: the answer does not wait for the body.
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=HANG)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", "10000000")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()

    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 65_536

    # Not announced at all (chunked).
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        assert httpx.post(f"{url}/v1/completions", content=endless(), timeout=HANG).status_code == 413
    assert engine.alive
    assert post(url, prompt="H", max_tokens=1).status_code == 200


@pytest.mark.end_to_end
def test_two_hundred_simultaneous_clients(served: Served) -> None:
    url, engine = served
    most = 0

    def ask(i: int) -> tuple[int, httpx.Headers, dict]:
        nonlocal most
        with httpx.Client(timeout=HANG) as http_client:
            body = {"model": NAME, "prompt": "H12+34B", "max_tokens": 20, "temperature": 0, "stream": i % 2 == 0}
            response = http_client.post(f"{url}/v1/completions", json=body)
            most = max(most, engine.waiting)
            if response.status_code == 200 and i % 2 == 0:
                events = [json.loads(e[6:]) for e in response.text.split("\n\n") if e.startswith("data: {")]
                return 200, response.headers, {"text": "".join(e["choices"][0]["text"] for e in events)}
            return response.status_code, response.headers, response.json()

    expected = post(url, prompt="H12+34B", max_tokens=20, temperature=0).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        results = list(pool.map(ask, range(200)))
    statuses = Counter(status for status, _, _ in results)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= LIMITS.slots + LIMITS.queue
    assert most <= LIMITS.slots + LIMITS.queue
    for status, headers, body in results:
        if status == 429:
            assert 1 <= int(headers["retry-after"]) <= 60
            assert body["error"]["type"] == "rate_limit_error"
        else:
            assert (body["text"] if "text" in body else body["choices"][0]["text"]) == expected
    assert idle(engine)
    assert httpx.get(f"{url}/health").json()["status"] == "ok"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(stream: bool) -> None:
    limits = LIMITS.model_copy(update={"slots": 1, "queue": 0})
    with running_server(limits=limits) as (url, engine):
        engine_step = engine._decode

        def slow() -> None:
            time.sleep(0.2)  # the server has all these to notice that its client is gone
            engine_step()

        engine._decode = slow  # type: ignore[method-assign]
        before = engine.stats.cancelled
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=HANG)
        body = {"model": NAME, "prompt": "H", "max_tokens": 120, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body))
        while not engine.running:
            time.sleep(0.01)
        assert post(url, prompt="H", max_tokens=1).status_code == 429
        if stream:
            connection.getresponse().read(10)
        connection.sock.close() if connection.sock else connection.close()
        connection.close()
        assert idle(engine)
        assert engine.stats.cancelled == before + 1
        assert engine.stats.completion_tokens < 115
        assert post(url, prompt="H", max_tokens=1).status_code == 200


def test_a_token_is_needed_where_one_is_set() -> None:
    with running_server(token="s3cret", local_only=False) as (url, _):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": "Bearer é".encode()},
        ):
            for path in ("/v1/models", "/metrics", "/nope"):
                response = httpx.get(url + path, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["type"] == "authentication_error"
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "authentication": True}
        assert httpx.get(url).status_code == 200
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="s3cret").models.list().data[0].id == NAME
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0).models.list()


def test_other_web_pages_cannot_use_the_server(served: Served) -> None:
    url, _ = served
    body = {"model": NAME, "prompt": "H", "max_tokens": 1}
    assert httpx.post(f"{url}/v1/completions", json=body, headers={"Origin": "https://evil.example"}).status_code == 403
    assert httpx.post(f"{url}/v1/completions", json=body, headers={"Origin": url}).status_code == 200
    assert httpx.get(f"{url}/v1/models", headers={"Host": "evil.example"}).status_code == 403
    answer = httpx.options(f"{url}/v1/completions", headers={"Origin": url, "Access-Control-Request-Method": "POST"})
    assert not [h for h in answer.headers if h.startswith("access-control")]


def test_the_page_and_its_headers(served: Served) -> None:
    page = httpx.get(served[0])
    assert "text/html" in page.headers["content-type"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    for name in ("app.js", "style.css"):
        assert httpx.get(f"{served[0]}/static/{name}").status_code == 200


def test_metrics_count(served: Served) -> None:
    url, _ = served

    def value(name: str) -> float:
        lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].split()[-1])

    before = value("windtunnel_completion_tokens_total"), value('windtunnel_requests_total{status="200"}')
    post(url, prompt="H", max_tokens=7, temperature=0)
    assert value("windtunnel_completion_tokens_total") == before[0] + 7
    assert value('windtunnel_requests_total{status="200"}') == before[1] + 1
    assert value("windtunnel_up") == 1
    assert value("windtunnel_queue_depth") == 0
    assert value("windtunnel_tokens_per_second") > 0


def test_a_failure_costs_one_request_and_tells_no_internals() -> None:
    with running_server() as (url, engine):
        expected = post(url, prompt="H", max_tokens=5, temperature=0).json()["choices"][0]["text"]
        block = engine._decoder._model.blocks[0]  # type: ignore[attr-defined]
        whole, block.mlp = block.mlp, None
        for stream in (False, True):
            response = post(url, prompt="H", max_tokens=5, stream=stream)
            assert response.status_code == (200 if stream else 500)  # a stream has begun before anything can fail
            assert response.headers["x-request-id"] in response.text
            assert "mlp" not in response.text
            assert "Traceback" not in response.text
        post(url, prompt="H", max_tokens=5)
        assert httpx.get(f"{url}/health").status_code == 503  # nothing has worked lately
        block.mlp = whole
        assert post(url, prompt="H", max_tokens=5, temperature=0).json()["choices"][0]["text"] == expected
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_request_that_fills_its_context_costs_nobody_anything(served: Served) -> None:
    url, engine = served
    body = {"prompt": "H1+", "max_tokens": 100, "temperature": 0}
    alone = post(url, **body).json()["choices"][0]["text"]
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            full = pool.submit(post, url, prompt="1" * 120, max_tokens=200, temperature=0)
            beside = pool.submit(post, url, **body)
        assert full.result().json()["choices"][0]["finish_reason"] == "length"
        assert beside.result().json()["choices"][0]["text"] == alone
    assert engine.stats.failed == 0


def test_connections_that_drip_are_closed_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.web.server.HEAD_SECONDS", 1.0)
    monkeypatch.setattr("windtunnel.web.guard.BODY_SECONDS", 1.0)
    monkeypatch.setattr("windtunnel.web.server.MOST_CONNECTIONS", 60)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    beginnings = (b"", b"P", head, head + b"Content-Length: 1000\r\n\r\n", head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
    with running_server() as (url, _), contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        drips = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(200)]
        for i, drip in enumerate(drips):
            with contextlib.suppress(OSError):  # the first were closed when there were too many
                drip.sendall(beginnings[i % len(beginnings)])
        assert post(url, prompt="H", max_tokens=1).status_code == 200
        deadline = time.monotonic() + 60
        while drips and time.monotonic() < deadline:
            drips = [drip for drip in drips if not _closed(drip)]
            time.sleep(0.1)
        assert not drips
        assert post(url, prompt="H", max_tokens=1).status_code == 200


def _closed(drip: socket.socket) -> bool:
    """Send one more byte of a header, and see whether anybody is there."""
    try:
        drip.sendall(b"x")
        drip.setblocking(False)
        return drip.recv(65_536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        drip.settimeout(10)


def test_pages_of_another_address_may_ask_where_they_are_named() -> None:
    from dataclasses import replace

    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from windtunnel.web import Access, Guard

    app = Starlette(routes=[Route("/x", lambda request: PlainTextResponse("here"))])
    access = replace(Access("token", False), origins=("https://app.example",))
    client = TestClient(Guard(app, access, 0, ()))
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    before = client.options("/x", headers=asked)
    assert (before.status_code, before.headers["access-control-allow-origin"]) == (204, "https://app.example")
    assert "Authorization" in before.headers["access-control-allow-headers"]
    assert client.get("/x", headers={"Origin": "https://app.example"}).status_code == 401  # a token is still needed
    answer = client.get("/x", headers={"Origin": "https://app.example", "Authorization": "Bearer token"})
    assert (answer.text, answer.headers["access-control-allow-origin"]) == ("here", "https://app.example")
    other = client.options("/x", headers={**asked, "Origin": "https://evil.example"})
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("presence_penalty", 0.5, "unsupported_value"), ("logit_bias", {"1": 2.0}, "unsupported_value"),
     ("reasoning_effort", "low", "unsupported_parameter"), ("temprature", 1, "unknown_parameter")],
)  # fmt: skip
def test_openai_client_is_told_what_is_not_supported(client: openai.OpenAI, field: str, value: object, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=NAME, prompt="H", extra_body={field: value})
    assert (refused.value.code, refused.value.param) == (code, field)
    assert code == "unknown_parameter" or "not supported" in str(refused.value)
