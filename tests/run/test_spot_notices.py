"""Spot notices of each provider, from a metadata server that answers as its documents say."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from waiting import until

from windtunnel.recipe import UserError
from windtunnel.run import StopRequest


class Metadata(ThreadingHTTPServer):
    """A machine's metadata service. Attributes: taken: whether the machine is about to be taken away. asked: how often."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken, self.asked = False, 0


class Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        if self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
            self.answer(200, "a-token")
        else:
            self.answer(400, "")

    def do_GET(self) -> None:
        self.server.asked += 1
        taken, headers = self.server.taken, self.headers
        if self.path == "/latest/meta-data/spot/instance-action":
            if headers.get("X-aws-ec2-metadata-token") != "a-token":
                self.answer(401, "")
            else:
                self.answer(200, '{"action": "terminate", "time": "2026-11-23T14:00:00Z"}') if taken else self.answer(404, "")
        elif self.path == "/computeMetadata/v1/instance/preempted":
            self.answer(200, "TRUE" if taken else "FALSE") if headers.get("Metadata-Flavor") == "Google" else self.answer(403, "")
        elif self.path.startswith("/metadata/scheduledevents?api-version=") and headers.get("Metadata") == "true":
            kinds = [("Freeze", "me"), ("Preempt", "me" if taken else "neighbour"), ("Reboot", "me")]
            events = [{"EventType": k, "NotBefore": "Mon, 23 Nov 2026 14:00:00 GMT", "Resources": [who]} for k, who in kinds]
            self.answer(200, json.dumps({"DocumentIncarnation": 1, "Events": events}))
        elif self.path.startswith("/metadata/instance/compute/name?api-version=") and headers.get("Metadata") == "true":
            self.answer(200, "me")
        else:
            self.answer(404, "")

    def answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("provider", "said"), [("aws", "terminate"), ("gcp", "TRUE"), ("azure", "Preempt, not before Mon")])
def test_a_notice_is_heard_and_nothing_else_is_taken_for_one(
    provider: str, said: str, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # the service is the machine's own: no proxy has it
    with StopRequest(f"{provider}@http://127.0.0.1:{metadata.server_port}", period=0.02) as stop:
        until(lambda: metadata.asked > 3, "nobody asks")
        assert stop.requested is None
        metadata.taken = True
        until(lambda: stop.requested is not None, "the notice is not heard")
    assert stop.requested is not None
    assert stop.requested.startswith("spot notice: ")
    assert said in stop.requested


def test_runpod_has_nothing_to_ask_and_what_is_unknown_is_refused() -> None:
    with StopRequest("runpod") as stop:
        assert stop.requested is None
    with pytest.raises(UserError, match="azure"):
        StopRequest("hetzner")
