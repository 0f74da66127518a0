"""Spot notices of each provider, from a metadata server that answers as its documents say."""

from collections.abc import Iterator

import pytest
from metadata_server import Metadata, metadata_server
from waiting import until

from windtunnel.recipe import UserError
from windtunnel.run import StopRequest


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_server() as server:
        yield server


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
