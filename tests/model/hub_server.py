"""A hub that serves real files over HTTP, as Hugging Face's does, and fails as it is told to."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from waiting import until

SHA = "0123456789abcdef0123456789abcdef01234567"


def tiny_model(folder: Path, vocab: int = 64, shard: str = "40KB") -> Path:
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text("another format")
    (folder / "original").mkdir()
    (folder / "original" / "model.safetensors").write_text("another layout")
    return folder


class Hub(ThreadingHTTPServer):
    """A hub with one repository, one that is gated and no other.

    `broken` files are sent as zeros; `cut` has how many bytes of a file are sent before the connection breaks, once, and
    `stalled` those that then send nothing more. `asked` are the files sent, `sent` how many bytes of each. `first` are answers
    that are given before any other, each once, to paths that end so; `storage` is where it sends those who ask for weights.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder, self.broken, self.asked = folder, set[str](), list[str]()
        self.cut, self.stalled, self.sent = dict[str, int](), set[str](), dict[str, int]()
        self.first, self.storage = list[tuple[str, int, dict[str, str]]](), ""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.headers.get("Authorization") == "Bearer hf_expired":
            self._empty(401)
            return
        for answer in self.server.first:
            if self.command == "GET" and path.endswith(answer[0]):
                self.server.first.remove(answer)
                self._empty(answer[1], **answer[2])
                return
        if path.startswith("/api/models/someone/gated"):
            self._empty(403, "GatedRepo")
        elif path.startswith("/api/models/someone/tiny/tree"):
            self._json([self._file(file) | {"type": "file", "path": name} for name, file in self._files()])
        elif path.startswith("/api/models/someone/tiny"):
            siblings = [self._file(file) | {"rfilename": name} for name, file in self._files()]
            self._json({"id": "someone/tiny", "modelId": "someone/tiny", "sha": SHA, "siblings": siblings, "tags": []})
        elif self.server.storage and path.startswith("/someone/tiny/resolve/") and path.endswith(".safetensors"):
            self._empty(302, Location=f"{self.server.storage}{path}?Signature=secret")
        elif path.startswith(f"/someone/tiny/resolve/{SHA}/"):
            self._send(path.partition(f"{SHA}/")[2])
        else:
            self._empty(404, "RepoNotFound")

    def _empty(self, code: int, kind: str | None = None, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if kind is not None:
            self.send_header("X-Error-Code", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _files(self) -> list[tuple[str, Path]]:
        root = self.server.folder
        return [(str(file.relative_to(root)), file) for file in sorted(root.rglob("*")) if file.is_file()]

    def _file(self, file: Path) -> dict[str, object]:
        content = file.read_bytes()
        size, digest = len(content), hashlib.sha256(content).hexdigest()
        blob = hashlib.sha1(b"blob %d\0" % size + content).hexdigest()
        lfs = {"sha256": digest, "oid": digest, "size": size, "pointerSize": 134}
        return {"size": size, "oid": blob, "blobId": blob} | ({"lfs": lfs} if file.suffix == ".safetensors" else {})

    def _json(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _send(self, name: str) -> None:
        content = (self.server.folder / name).read_bytes()
        whole, begin = len(content), int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
        self.send_header("Content-Length", str(whole - begin))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", SHA)
        self.end_headers()
        if self.command != "GET":
            return
        if name in self.server.broken:
            content = bytes(len(content))
        else:
            self.server.asked.append(name)
        end = self.server.cut.pop(name, whole)
        self.wfile.write(content[begin:end])
        self.wfile.flush()
        self.server.sent[name] = self.server.sent.get(name, 0) + max(0, end - begin)
        if end < whole:
            until(lambda: name not in self.server.stalled)
            self.close_connection = True
