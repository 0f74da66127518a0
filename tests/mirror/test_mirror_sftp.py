"""A mirror on an SFTP server: a real sshd, reached by the user's own configuration, keys and known hosts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from ssh_hosts import MISSING, Machine, machine

from windtunnel.mirror import Keeper, Lease, LeaseTaken, Mirror, Place, Store, StoreError, fetch_run
from windtunnel.recipe import UserError, load_recipe
from windtunnel.run import Metrics, MetricsReader, RunFolder

NEEDED = [*MISSING, *([] if find_spec("paramiko") else ["paramiko"])]
pytestmark = pytest.mark.skipif(
    bool(NEEDED), reason=f"not installed here: {', '.join(NEEDED)} (apt install openssh-server rsync; pip install paramiko)"
)
QUICK = 5.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A server whose name, port and key stand in this user's ~/.ssh/config."""
    with machine(tmp_path / "machine") as found:
        port, own = found.address.rpartition(":")[2], tmp_path / "laptop" / ".ssh"
        own.mkdir(parents=True)
        (own / "config").write_text(f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/machine/user\n")
        key = (tmp_path / "machine" / "host.pub").read_text()
        (own / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}")
        monkeypatch.setenv("HOME", str(own.parent))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield found


def test_objects_are_where_the_address_says_and_only_one_creates_them(server: Machine, tmp_path: Path) -> None:
    place = tmp_path / "there" / "runs"
    store = Store(Place.parse(f"sftp://box{place}"))
    assert store.get("blocks/a") is None
    assert store.sizes("blocks") == {}
    store.put("blocks/a", b"abc" * 100_000)
    assert (place / "blocks" / "a").read_bytes() == store.get("blocks/a")
    assert store.sizes("blocks") == {"blocks/a": 300_000}
    won: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: won.append(store.create("lease/1", b"%d" % n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]
    store.delete("blocks/a")
    store.delete("blocks/a")
    assert store.get("blocks/a") is None


def test_a_run_is_mirrored_there_and_comes_home(server: Machine, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs", load_recipe("charlm"), rig={"name": "here"}) as run:
        with Metrics(run.metrics_path) as metrics:
            metrics.log(1, {"loss": 2.0})
        url = f"sftp://box{tmp_path}/there/{run.path.name}"
        store = Store(Place.parse(url))
        lease = Lease.acquire(store, print, seconds=QUICK)
        with contextlib.closing(Keeper(lease, seconds=1.0)) as keeper:
            Mirror(run.path, store, lease, keeper).sync()
            with pytest.raises(LeaseTaken):  # by a second machine
                Lease.acquire(Store(Place.parse(url)), print, seconds=2 * QUICK)
        lease.release()
    home = fetch_run(url, tmp_path / "home", print)
    with MetricsReader(home / "metrics.sqlite") as reader:
        assert [point.value for point in reader.series("loss")] == [2.0]


def test_a_server_that_is_not_known_refuses_or_is_away_is_named(server: Machine, tmp_path: Path) -> None:
    port, own = server.address.rpartition(":")[2], tmp_path / "laptop" / ".ssh"
    with pytest.raises(StoreError) as refused:
        Store(Place.parse(f"sftp://127.0.0.1:{port}{tmp_path}/there")).put("a", b"b")  # no key is named for it
    assert "credentials are missing or refused" in refused.value.message
    assert "SSH key" in str(refused.value.fix)
    known = own / "known_hosts"
    known.rename(own / "aside")
    with pytest.raises(StoreError) as unknown:
        Store(Place.parse(f"sftp://box{tmp_path}/there")).put("a", b"b")
    assert "known_hosts" in unknown.value.message
    assert unknown.value.fix == "ssh box, once"
    assert not (tmp_path / "there").exists()
    (own / "aside").rename(known)
    store = Store(Place.parse(f"sftp://box{tmp_path}/there"))
    store.put("a", b"b")
    server.take_away()
    store.renew()
    with pytest.raises(StoreError) as away:
        store.put("c", b"d")
    assert "look at the network" in str(away.value.fix)
    with pytest.raises(UserError, match="carries a credential"):
        Place.parse("sftp://me:hush-hush@box/x")
    assert Place.parse("sftp://me@box:2222/x").root == "/x"
