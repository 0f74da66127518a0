"""A real S3 server for all tests of a file, and a tap in front of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import Tap, environment, make_bucket, s3_server


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def tap(port: int, monkeypatch: pytest.MonkeyPatch) -> Tap:
    """An open tap before a server with the bucket `runs`, to which this process's AWS client goes."""
    tap = Tap(port)
    tap.start()
    for name, value in environment(tap.url).items():
        monkeypatch.setenv(name, value)
    make_bucket(tap.url, "runs")
    return tap
