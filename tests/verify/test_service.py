"""The service over real HTTP: verdicts, refusals, a full queue, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from waiting import HANG

from windtunnel.recipe import UserError
from windtunnel.verify import serve

TOKEN = "a-token-for-tests"
SQUARE = {"cases": [{"function": "f", "args": [3], "expected": 9}]}
DEEP_ARGUMENT = json.dumps({"kind": "code", "task": {"asserts": f"assert f({'[' * 70}{']' * 70}) == 1"}, "answer": ""}).encode()
RIGHT = "def f(x): return x * x"


# The command line, which gives requests under way one second to end instead of 15 when it is told to stop.
HURRIED = """
import sys
from windtunnel.cli import main
from windtunnel.web import server
server.GRACE_SECONDS = 1
main(sys.argv[1:])
"""


def start(*options: str, token: str | None = None) -> tuple[subprocess.Popen[str], str]:
    """The service as a process of its own, and its address."""
    environment = {k: v for k, v in os.environ.items() if k != "WINDTUNNEL_TOKEN"} | (
        {"WINDTUNNEL_TOKEN": token} if token else {}
    )
    command = [sys.executable, "-c", HURRIED, "verify", "--serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, line + process.stdout.read()
    return process, found[0]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "square.json").write_text(json.dumps({"kind": "code", "task": SQUARE}))
    (folder / "bad.json").write_text("{")
    (folder / "bytes.json").write_bytes(b"\xff")
    (folder / "gone.json").symlink_to(folder / "nowhere")
    (folder / "syntax.py").write_text("def")
    (folder / "bytes.py").write_bytes(b"\xff")
    (folder / "empty.py").write_text("")
    process, url = start("--workers", "2", "--queue", "4", "--tasks", str(folder), token=TOKEN)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=HANG) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG) == 0


def ask(service: httpx.Client, kind: str, task: object, answer: object) -> httpx.Response:
    return service.post("/verify", json={"kind": kind, "task": task, "answer": answer})


def test_verdicts_of_each_kind(service: httpx.Client) -> None:
    right = ask(service, "code", SQUARE, RIGHT)
    assert right.status_code == 200
    assert right.json()["accepted"] is True
    assert right.json()["reward"] == 1.0
    wrong = ask(service, "code", SQUARE, "def f(x): return x").json()
    assert (wrong["accepted"], wrong["reason"], wrong["reward"]) == (False, "wrong-result", 0.0)
    assert ask(service, "code", "square", RIGHT).json()["accepted"] is True
    assert ask(service, "exact", {"answer": "42"}, "42").json()["accepted"] is True
    assert ask(service, "format", {"tags": ["think"]}, "no").json()["reason"] == "tags"


def test_answers_with_odd_characters_are_judged(service: httpx.Client) -> None:
    odd = '"\\ud800 \\u0000 \\udfff"'
    for body in (
        '{"kind": "exact", "task": {"answer": "42"}, "answer": ODD}',
        '{"kind": "code", "task": {"asserts": "assert f() == 1", "reveal": true}, "answer": ODD}',
        '{"kind": "format", "task": {"schema": {"type": "object"}}, "answer": ODD}',
    ):
        answer = service.post("/verify", content=body.replace("ODD", odd))
        assert answer.status_code == 200, answer.text
        assert answer.json()["accepted"] is False
    raising = "def f(): raise ValueError(chr(0xD800))"
    told = ask(service, "code", {"asserts": "assert f() == 1", "reveal": True}, raising)
    assert (told.status_code, told.json()["reason"]) == (200, "raised")


def test_health_is_open_and_says_what_runs(service: httpx.Client) -> None:
    health = httpx.get(f"{service.base_url}/health").json()
    assert health["status"] == "ok"
    assert health["hardened"] is True
    assert (health["workers"], health["capacity"]) == (2, 4)


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}]
)
def test_the_token_is_needed(service: httpx.Client, header: dict[str, str]) -> None:
    answer = httpx.post(f"{service.base_url}/verify", json={}, headers=header)
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'{"kind": "code"}', 400),
        (b'{"kind": 1, "task": {}, "answer": ""}', 400),
        (b'{"kind": "code", "task": {}, "answer": 3}', 400),
        (b'{"kind": "poetry", "task": {}, "answer": ""}', 422),
        (b'{"kind": "code", "task": {}, "answer": ""}', 422),
        (b'{"kind": "code", "task": [], "answer": ""}', 422),
        (b'{"kind": "code", "task": "no-such-task", "answer": ""}', 422),
        (b'{"kind": "code", "task": "../bad", "answer": ""}', 422),
        (b'{"kind": "code", "task": "bad", "answer": ""}', 422),
        (b'{"kind": "kernel", "task": "no-such-kernel", "answer": ""}', 422),
        (b'{"kind": "kernel", "task": {}, "answer": ""}', 422),
        (b'{"kind": "format", "task": {"schema": {"type": 5}}, "answer": "5"}', 422),
        (b'{"kind": "format", "task": {"schema": {"enum": 5}}, "answer": "5"}', 422),
        (b'{"kind": "format", "task": {"schema": ' + b'{"items":' * 500 + b"{}" + b"}" * 501 + b', "answer": "5"}', 422),
        (b'{"kind": "code", "task": {"asserts": "assert f(1) == 1", "seconds": 100000000}, "answer": ""}', 422),
        (b'{"kind": "code", "task": {"asserts": "assert f(1) == 1", "seconds": 0}, "answer": ""}', 422),
        (b'{"kind": "code", "task": {"asserts": "assert f(1) == 1", "memory_mib": 0}, "answer": ""}', 422),
        (b'{"kind": "code", "task": {"asserts": "assert f(1) == 1", "partial": "no"}, "answer": ""}', 422),
        (DEEP_ARGUMENT, 422),
        (b"x" * (10 << 20), 413),
    ],
)
def test_bad_requests_are_told_what_is_wrong(service: httpx.Client, body: bytes, status: int) -> None:
    answer = service.post("/verify", content=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{}", "lacks 'answer'; send {"),
        ('{"kind": "exact", "answer": "a"}', "lacks 'task'"),
        ('{"kind": "exact", "answer": "a", "task": {}, "zeal": 1}', "has the unknown key 'zeal'"),
        ('{"kind": "exact", "answer": "a", "task": {}, "\\ud800": 1}', "has the unknown key '\\ud800'"),
        ('{"kind": "exact", "answer": null, "task": {}}', "answer is not a string"),
        ('{"kind": 3, "answer": "", "task": {}}', "kind is not a string"),
        ('{"kind": "exact", "answer": "a", "answer": "b", "task": {}}', "the key 'answer' comes twice"),
        ("3", "not an object; send {"),
    ],
)
def test_a_request_is_told_which_key_is_wrong(service: httpx.Client, body: str, words: str) -> None:
    answer = service.post("/verify", content=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("code", name) for name in ("bad", "bytes", "gone")),
        *(("kernel", name) for name in ("syntax", "bytes", "empty")),
    ],
)
def test_a_task_of_the_folder_is_named_and_not_its_place(service: httpx.Client, kind: str, name: str) -> None:
    answer = ask(service, kind, name, "")
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert f"task {name}" in message
    assert "/" not in message


def test_another_method_has_a_code_of_its_own(service: httpx.Client) -> None:
    for method, path, status, code in (
        ("GET", "/verify", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/nowhere", 404, "not_found"),
    ):
        answer = service.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_body_longer_than_it_says_is_cut_off(service: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * (1 << 20)

    with contextlib.suppress(httpx.WriteError):  # it may close the connection before all is sent
        assert service.post("/verify", content=parts()).status_code == 413


def test_a_body_that_never_ends_does_not_hold_its_connection_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from starlette.requests import Request

    from windtunnel.web import APIError, guard, read_body

    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, object]:
        for part in parts:
            return part
        await asyncio.sleep(60)
        raise AssertionError("it waited")

    with pytest.raises(APIError, match=r"did not arrive within 0\.2 s: 1 bytes") as error:
        asyncio.run(read_body(Request({"type": "http"}, receive), 100))
    assert error.value.status == 408


IMPATIENT = """
from windtunnel.web import server
server.HEAD_SECONDS = 0.5
from windtunnel.verify import serve
serve(port=0, workers=1)
"""


def test_who_connects_and_asks_nothing_is_let_go() -> None:
    process = subprocess.Popen([sys.executable, "-c", IMPATIENT], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found
        ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for said in (b"", ask[:20], ask + ask[:20]):  # nothing; a part of a request; a whole one and a part of another
            with socket.create_connection(("127.0.0.1", int(found[1])), timeout=HANG) as idle:
                idle.sendall(said)
                answer = b"".join(iter(lambda: idle.recv(65_536), b""))
                assert answer.startswith(b"HTTP/1.1 200" if ask in said else b"")
                assert answer.count(b"HTTP/1.1") == said.count(ask)
        busy = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=HANG)
        busy.connect()
        own, asked, silent = busy.sock, [time.monotonic()], False
        while asked[-1] - asked[0] < 1.0 and not silent:  # longer altogether than one may be silent
            time.sleep(0.1)
            busy.request("GET", "/health", headers={"Host": "localhost"})
            assert busy.getresponse().read().startswith(b"{")
            asked.append(time.monotonic())
            silent = asked[-1] - asked[-2] > 0.4  # this machine is too busy to ask in time: closing the connection is right
            assert busy.sock is own or silent, "the connection was closed"
        busy.close()
    finally:
        process.terminate()
        assert process.wait(HANG) == 0


def test_a_full_queue_answers_429_and_the_rest_is_judged(service: httpx.Client) -> None:
    slow = {**SQUARE, "seconds": 0.5}
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda _: ask(service, "code", slow, "def f(x):\n while True: pass"), range(12)))
    full = [answer for answer in answers if answer.status_code == 429]
    assert full
    assert all(answer.headers["Retry-After"] for answer in full)
    judged = [answer for answer in answers if answer.status_code == 200]
    assert len(judged) >= 4
    assert {answer.json()["reason"] for answer in judged} == {"timeout"}
    assert ask(service, "code", SQUARE, RIGHT).json()["accepted"] is True


def test_no_web_page_and_no_other_name_reaches_a_service_without_token() -> None:
    process, url = start("--workers", "1")
    try:
        body = {"kind": "exact", "task": {"answer": "a"}, "answer": "a"}
        assert httpx.post(f"{url}/verify", json=body).json()["accepted"] is True
        assert httpx.post(f"{url}/verify", json=body, headers={"Host": "evil.example"}).status_code == 403
        assert httpx.post(f"{url}/verify", json=body, headers={"Origin": "http://evil.example"}).status_code == 403
        assert httpx.get(f"{url}/docs").status_code == 404
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0


def test_a_killed_service_takes_its_workers_with_it() -> None:
    process, url = start("--workers", "1")
    hanging = {"kind": "code", "task": {**SQUARE, "seconds": 60}, "answer": "def f(x):\n while True: pass"}
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(lambda: httpx.post(f"{url}/verify", json=hanging, timeout=HANG))
        deadline = time.monotonic() + HANG
        while httpx.get(f"{url}/health").json()["busy"] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = [pid for pid in _children(process.pid)]
        assert workers
        process.kill()
        process.wait()
        with pytest.raises(httpx.HTTPError):
            future.result()
    until_ended(workers)


def until_ended(processes: list[int]) -> None:
    """Until none of them is left, not even to be waited for."""
    deadline = time.monotonic() + HANG
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


HANGING = {"kind": "code", "task": {**SQUARE, "seconds": 1000}, "answer": "def f(x):\n while True: pass"}


def until(url: str, **wanted: int) -> None:
    """Until /health says so."""
    deadline = time.monotonic() + HANG
    while (health := httpx.get(f"{url}/health", timeout=HANG).json()) | wanted != health:
        assert time.monotonic() < deadline, health
        time.sleep(0.02)


def test_a_service_that_is_told_to_stop_does_not_wait_for_a_long_job() -> None:
    process, url = start("--workers", "1")
    try:
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(lambda: httpx.post(f"{url}/verify", json=HANGING, timeout=HANG)) for _ in range(2)]
            until(url, busy=1, waiting=1)
            workers = _children(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) == 0  # the job would take longer
            answers = [one.result() for one in asked]
    finally:
        process.kill()
    assert [answer.status_code for answer in answers] == [503, 503]
    assert {answer.json()["error"]["code"] for answer in answers} == {"stopping"}
    until_ended(workers)


def test_told_to_stop_again_and_again_it_ends_at_once_without_a_traceback() -> None:
    process, url = start("--workers", "1")
    try:
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(lambda: httpx.post(f"{url}/verify", json=HANGING, timeout=HANG))
            until(url, busy=1)
            deadline = time.monotonic() + HANG
            while process.poll() is None and time.monotonic() < deadline:  # whatever it is at when it is told again
                process.send_signal(signal.SIGINT)
                time.sleep(0.02)
            said, _ = process.communicate(timeout=HANG)
            assert process.returncode == 0
            assert said == ""
            assert asked.result().status_code == 503
    finally:
        process.kill()


def test_clients_that_went_away_are_not_judged() -> None:
    process, url = start("--workers", "1", "--queue", "2")
    try:
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(lambda: httpx.post(f"{url}/verify", json=HANGING, timeout=HANG))
            until(url, busy=1)
            others = [http.client.HTTPConnection(url.removeprefix("http://"), timeout=HANG) for _ in range(2)]
            for other in others:
                other.request("POST", "/verify", json.dumps(HANGING), {"Content-Type": "application/json"})
            until(url, busy=1, waiting=2)
            for other in others:
                other.close()
            until(url, busy=1, waiting=0)
            assert not first.done(), "they had to wait for the one under way"
            process.send_signal(signal.SIGTERM)
            assert first.result().status_code == 503
            assert process.wait(HANG) == 0
    finally:
        process.kill()


def test_it_does_not_listen_to_the_world_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WINDTUNNEL_TOKEN", raising=False)
    with pytest.raises(UserError, match="no token"):
        serve(host="0.0.0.0", port=0)
    with pytest.raises(UserError, match="printable"):
        serve(port=0, token="two words ")
    with pytest.raises(UserError, match="no such folder"):
        serve(port=0, tasks=Path("/no/such/folder"))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for word in child.read_text().split():
            found += [int(word), *_children(int(word))]
    return found
