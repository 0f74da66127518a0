"""A mirror on servers that speak Google's and Azure's ways: gcp-storage-emulator and Azurite, where they are installed.

pip install gcsfs adlfs gcp-storage-emulator; npm install azurite, with its azurite-blob on the PATH.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pytest
from waiting import until

from windtunnel.mirror import Keeper, Lease, LeaseTaken, Mirror, Place, Store, StoreError, fetch_run
from windtunnel.recipe import load_recipe
from windtunnel.run import Metrics, MetricsReader, RunFolder

# Azurite's own account, which everybody knows.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE = shutil.which("azurite-blob")
NEEDED = {
    "gs": [name for name in ("gcsfs", "gcp_storage_emulator") if not find_spec(name)],
    "az": [*([] if find_spec("adlfs") else ["adlfs"]), *([] if AZURITE else ["azurite-blob"])],
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """A server in a process of its own, once it listens."""

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(listens)
            yield
        finally:
            server.kill()


class Conditions(BaseHTTPRequestHandler):
    """In front of the emulator, which writes whatever it is asked to: refuses ifGenerationMatch=0 where there is an object."""

    protocol_version = "HTTP/1.1"
    behind: int
    turn = threading.Lock()

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.turn:
            if "ifGenerationMatch=0" in self.path and self.there(body):
                self.answer(412, b'{"error": {"message": "conditionNotMet"}}', {})
                return
            found = self.ask(self.command, self.path, body, dict(self.headers))
        self.answer(found[0], found[1], found[2])

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = pass_on  # noqa: N815 - as http.server calls them

    def there(self, body: bytes) -> bool:
        named, bucket = re.search(rb'\{"name".*?\}', body), re.search(r"/b/([^/]+)/o", self.path)
        assert named is not None
        assert bucket is not None
        name = json.loads(named[0])["name"]
        return self.ask("GET", f"/storage/v1/b/{bucket[1]}/o/{quote(name, safe='')}", b"", {})[0] == 200

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.behind)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def google(folder: Path) -> Iterator[dict[str, str]]:
    port = free_port()
    main = "from gcp_storage_emulator.server import create_server as c; c('127.0.0.1', {}, True, 'runs').run()"
    with running([sys.executable, "-c", main.format(port)], port):
        with ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (Conditions,), {"behind": port})) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{server.server_port}"}
            server.shutdown()


@contextlib.contextmanager
def azure(folder: Path) -> Iterator[dict[str, str]]:
    import fsspec

    port = free_port()
    assert AZURITE is not None
    with running([AZURITE, "--location", str(folder), "--blobPort", str(port), "--skipApiVersionCheck", "--silent"], port):
        told = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        told += f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        fsspec.filesystem("abfs", connection_string=told, skip_instance_cache=True).mkdir("runs")
        yield {"AZURE_STORAGE_CONNECTION_STRING": told}


@pytest.fixture(scope="module", params=["gs", "az"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    kind = request.param
    if NEEDED[kind]:
        pytest.skip(f"not installed here: {', '.join(NEEDED[kind])}")
    with {"gs": google, "az": azure}[kind](tmp_path_factory.mktemp(kind)) as environment:
        yield kind, environment


@pytest.fixture
def kind(server: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """The scheme of a server that this process's clients find as they would find the provider."""
    for name, value in server[1].items():
        monkeypatch.setenv(name, value)
    return server[0]


@pytest.fixture
def store(kind: str) -> Store:
    return Store(Place.parse(f"{kind}://runs/{uuid.uuid4().hex}"))


def test_an_object_is_what_was_put_and_only_one_creates_it(store: Store) -> None:
    assert store.get("blocks/a") is None
    assert store.sizes("blocks") == {}
    data = bytes(range(256)) * 40_000
    for name in ("blocks/a", "blocks/ä b+%20"):
        store.put(name, data)
        assert store.get(name) == data
    store.put("blocks/a", b"")
    assert store.sizes("") == {"blocks/a": 0, "blocks/ä b+%20": len(data)}
    won: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: won.append(store.create("lease/1", b"%d" % n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]
    for _ in range(2):
        store.delete("blocks/a")
    assert store.get("blocks/a") is None


def test_a_bucket_that_is_not_there_is_named_whatever_is_asked_of_it(kind: str) -> None:
    store = Store(Place.parse(f"{kind}://nobody-made-it/runs"))
    for ask in (lambda: store.put("a", b"1"), lambda: store.sizes("")):
        with pytest.raises(StoreError, match=r"there is no such (bucket|container)"):
            ask()


def test_a_bucket_may_be_called_so(kind: str) -> None:
    import fsspec

    fsspec.filesystem({"gs": "gs", "az": "abfs"}[kind], skip_instance_cache=True).mkdir("my-bucket")
    store = Store(Place.parse(f"{kind}://my-bucket/container"))
    assert store.get("none") is None
    assert store.sizes("none") == {}
    store.delete("none")
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_credentials_that_are_wrong_are_said_to_be_and_not_shown(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "gs":
        pytest.skip("the emulator asks for none")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "")
    with pytest.raises(StoreError, match="credentials are missing or refused"):
        Store(Place.parse("az://runs/x")).put("a", b"1")


def test_a_run_goes_there_comes_back_and_has_one_holder(store: Store, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={"name": "here"}) as run:
        with Metrics(run.metrics_path) as metrics:
            metrics.log(1, {"loss": 2.0})
    lease = Lease.acquire(store, print, seconds=5.0)
    with contextlib.closing(Keeper(lease, seconds=0.5)) as keeper:
        Mirror(run.path, store, lease, keeper).sync()
        with pytest.raises(LeaseTaken):
            Lease.acquire(store, print, seconds=5.0)
    lease.release()
    home = fetch_run(str(store.place), tmp_path / "home", print)
    with MetricsReader(home / "metrics.sqlite") as reader:
        assert [point.value for point in reader.series("loss")] == [2.0]
