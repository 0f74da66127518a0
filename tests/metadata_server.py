"""A rented machine's metadata service, which answers for AWS, Google Cloud and Azure as their documents say."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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


@contextlib.contextmanager
def metadata_server() -> Iterator[Metadata]:
    server = Metadata()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
