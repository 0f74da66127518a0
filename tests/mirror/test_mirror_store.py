"""A mirror's store, lease and snapshots against a real S3 server and a folder: what happens when they fail, and who may write."""

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from s3_server import KEYS, Tap

from windtunnel.mirror import Keeper, Lease, LeaseTaken, Mirror, Place, Store, StoreError, fetch_run, newest_snapshot
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, RunFolder

SILENT = print


@pytest.fixture(params=["s3", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty place on each kind of store."""
    if request.param == "file":
        return Store(Place.parse(f"file://{tmp_path}/store"))
    request.getfixturevalue("tap")
    return Store(Place.parse(f"s3://runs/{uuid.uuid4().hex}"))


def a_run(root: Path) -> Path:
    """A run folder with metrics, as `windtunnel train` makes it, and no checkpoint."""
    with RunFolder.create(root, load_recipe("charlm"), rig={"name": "here"}) as run:
        with Metrics(run.metrics_path) as metrics:
            metrics.log(1, {"loss": 2.0})
        return run.path


def mirror_of(run: Path, store: Store) -> tuple[Mirror, Lease]:
    lease = Lease.acquire(store, SILENT, seconds=5.0)
    keeper = Keeper(lease, seconds=3600.0)
    return Mirror(run, store, lease, keeper), lease


def test_an_object_is_what_was_put_and_only_one_creates_it(store: Store) -> None:
    assert store.get("blocks/a") is None
    assert store.sizes("blocks") == {}
    store.put("blocks/a", b"abc")
    assert store.get("blocks/a") == b"abc"
    assert store.sizes("blocks") == {"blocks/a": 3}
    won: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: won.append(store.create("lease/1", b"%d" % n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    store.delete("blocks/a")
    store.delete("blocks/a")
    assert store.get("blocks/a") is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://KEY:hush-hush@bucket/x", "carries a credential"),
        ("s3://bucket/x?X-Amz-Signature=hush-hush", "carries a credential"),
        ("ftp://host/x", "unknown kind of store"),
        ("s3://", "no place is named"),
        ("file://relative/x", "no place is named"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_repeating_secrets(url: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Place.parse(url)
    assert said in caught.value.message
    assert "hush-hush" not in str(caught.value)


def test_a_store_that_is_cut_off_or_not_ours_is_named_and_no_secret_is_told(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Place.parse("s3://runs/here"))
    store.put("blocks/a", b"abc")
    tap.turn("cut")
    with pytest.raises(StoreError) as cut:
        store.put("blocks/b", b"abc")
    tap.turn("slow")
    store.renew()
    store.put("blocks/b", b"abc")
    tap.turn("open")
    with pytest.raises(StoreError) as missing:
        Store(Place.parse("s3://nobodys-bucket/here")).put("blocks/a", b"abc")
    for name in KEYS:
        monkeypatch.delenv(name)
    with pytest.raises(StoreError) as without:
        Store(Place.parse("s3://runs/here")).put("blocks/a", b"abc")
    assert "no such bucket" in missing.value.message
    assert "credentials are missing or refused" in without.value.message
    assert "aws configure" in str(without.value.fix)
    assert "look at the network" in str(cut.value.fix)
    assert not any(value in str(error.value) for error in (cut, missing, without) for value in KEYS.values())


@pytest.mark.parametrize(
    ("code", "status", "message", "said"),
    [
        ("ExpiredToken", 400, "The provided token has expired.", "credentials are expired"),
        (
            "RequestTimeTooSkewed",
            403,
            "The difference between the request time and the current time is too large.",
            "clock is wrong",
        ),
        ("AccessDenied", 403, "Access Denied", "credentials are missing or refused"),
        (
            "XMinioStorageFull",
            507,
            "Storage backend has reached its minimum free drive threshold.",
            "disk or quota there is full",
        ),
        ("QuotaExceeded", 403, "Unknown", "disk or quota there is full"),
    ],
)
def test_what_s3_refuses_is_told_as_such(
    tap: Tap, monkeypatch: pytest.MonkeyPatch, code: str, status: int, message: str, said: str
) -> None:
    """A server that answers every request as S3 does: a session's token has run out, a clock is wrong, a bucket is not ours."""
    import http.server

    class Refuses(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = _answer  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(StoreError) as caught:
        Store(Place.parse("s3://runs/here")).put("a", b"b")
    server.shutdown()
    assert said in caught.value.message


def test_a_full_disk_behind_a_folder_is_told_as_such(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys\n"
        "from windtunnel.mirror import Place, Store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "Store(Place.parse(sys.argv[1])).put('blocks/a', bytes(5000))\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run([sys.executable, "-c", program, f"file://{tmp_path}/s"], capture_output=True, text=True, timeout=300)
    assert "the disk or quota there is full" in done.stderr


def test_a_second_machine_is_refused_while_the_first_lives_and_takes_over_when_it_is_gone(store: Store) -> None:
    first = Lease.acquire(store, SILENT, seconds=5.0)
    renewing = Keeper(first, seconds=0.4)
    with pytest.raises(LeaseTaken, match="is in use: process"):
        Lease.acquire(store, SILENT, seconds=300.0)
    renewing.close()
    # Of another machine nothing can be known but whether it still writes.
    number, holder = 1, json.loads(store.get("lease/00000001.json") or b"")
    store.put("lease/00000001.json", json.dumps(holder | {"place": "another machine"}).encode())
    second = Lease.acquire(store, SILENT, seconds=1.0)
    assert second.number == number + 1
    with pytest.raises(LeaseTaken, match="has taken this mirror over"):
        first.renew()
    second.release()
    assert Lease.acquire(store, SILENT, seconds=300.0).number == number + 2  # at once: it was let go


def test_two_machines_that_find_a_dead_holder_do_not_both_get_its_lease(store: Store) -> None:
    gone = {"token": "t", "process": "", "place": "elsewhere", "released": True}
    store.create("lease/00000001.json", json.dumps(gone).encode())
    got: list[Lease] = []
    refused: list[Exception] = []

    def take() -> None:
        try:
            got.append(Lease.acquire(store, lambda text: None, seconds=2.0))
            Keeper(got[-1], seconds=0.4)
        except LeaseTaken as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 3)


def test_a_run_comes_home_byte_for_byte_and_what_is_unchanged_is_not_sent_again(store: Store, tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs")
    (run / "output.log").write_bytes(os.urandom(9 << 20))
    mirror, lease = mirror_of(run, store)
    first = mirror.sync()
    assert first.sent > 9 << 20
    assert mirror.sync().sent == 0
    with open(run / "output.log", "ab") as log:
        log.write(b"one more line\n")
    assert 0 < mirror.sync().sent < 2 << 20  # the last block alone
    lease.release()
    copy = fetch_run(str(store.place), tmp_path / "elsewhere", SILENT)
    same = [path for path in run.iterdir() if path.is_file() and path.name != "lock" and ".sqlite" not in path.name]
    assert {p.name for p in same} >= {"manifest.json", "recipe.yaml", "output.log"}
    assert all((copy / path.name).read_bytes() == path.read_bytes() for path in same)
    assert not any(value in path.read_text() for path in run.glob("*.json") for value in KEYS.values())


def test_an_upload_that_was_cut_short_goes_on_with_what_is_missing(tap: Tap, tmp_path: Path) -> None:
    store = Store(Place.parse(f"s3://runs/{uuid.uuid4().hex}"))
    run = a_run(tmp_path / "runs")
    (run / "output.log").write_bytes(os.urandom(40 << 20))
    mirror, _ = mirror_of(run, store)
    sent = []
    put = store.put

    def cut_after_three(key: str, data: bytes) -> None:
        if len(data) == 4 << 20:
            sent.append(len(data))
            if len(sent) == 4:
                tap.turn("cut")
        put(key, data)

    store.put = cut_after_three  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        mirror.sync()
    assert newest_snapshot_is_missing(tap, store)
    again = mirror.sync()
    assert again.sent < 32 << 20
    assert newest_snapshot(store) is not None


def newest_snapshot_is_missing(tap: Tap, store: Store) -> bool:
    """Once the connection is back: half a state is no state."""
    tap.turn("open")
    store.renew()
    return newest_snapshot(store) is None


def test_a_block_that_was_changed_in_the_store_is_found(tmp_path: Path) -> None:
    store = Store(Place.parse(f"file://{tmp_path}/store"))
    run = a_run(tmp_path / "runs")
    mirror, _ = mirror_of(run, store)
    mirror.sync()
    block = next(path for path in (tmp_path / "store" / "blocks").iterdir())
    block.write_bytes(bytes(len(block.read_bytes())))
    with pytest.raises(UserError, match="was changed since it was written"):
        fetch_run(str(store.place), tmp_path / "elsewhere", SILENT)


def test_old_states_and_their_blocks_are_removed_there_too(tmp_path: Path) -> None:
    store = Store(Place.parse(f"file://{tmp_path}/store"))
    run = a_run(tmp_path / "runs")
    mirror, _ = mirror_of(run, store)
    for number in range(6):
        (run / "output.log").write_bytes(os.urandom(1 << 20) + b"%d" % number)
        mirror.sync()
    assert len(store.sizes("snapshots")) == 2
    assert sum(store.sizes("blocks").values()) < 3 << 20
    shutil.rmtree(run)
    assert fetch_run(str(store.place), tmp_path / "elsewhere", SILENT).name == run.name
