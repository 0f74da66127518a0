"""Spot notices: how each provider says that a machine is about to be taken away, asked for as its documents say.

AWS gives two minutes, Google Cloud and Azure 30 seconds, all through a metadata service that only the machine itself reaches.
RunPod has none: it sends SIGTERM, and SIGKILL five seconds later, and the signal is all there is to wait for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from windtunnel.recipe import UserError

NOTICE_VARIABLE = "WINDTUNNEL_SPOT_NOTICE"
NOTICE_SECONDS = {"aws": 120.0, "gcp": 30.0, "azure": 30.0, "runpod": 5.0}
"""From the notice to the end of the machine, at least."""
LOOK_SECONDS = {"aws": 5.0}
"""Between looks, as AWS's documents ask for; elsewhere a second, as Azure's do."""
_AWS = "http://169.254.169.254"
_GCP = "http://metadata.google.internal"
_AZURE = "http://169.254.169.254"
_AZURE_VERSION = "2020-07-01"
# What the services answer, with 200, while nothing is to happen.
_NOT_YET = ("", "false", "none", "null")
# On the machine's own link: what takes longer is not there.
_TIMEOUT = 2.0

Look = Callable[[], str | None]


def look_seconds(notice: str) -> float:
    """Return how long to wait between looks for a notice."""
    return LOOK_SECONDS.get(notice.partition("@")[0], 1.0)


def spot_look(notice: str) -> Look | None:
    """Return what looks once for a notice and returns its text; None where there is nothing to look at.

    Args:
        notice: 'file:/path', an http address, or a provider; 'aws@http://host:port' asks its metadata service at another address.

    Raises:
        UserError: none of these.
    """
    if notice.startswith("file:"):
        path = Path(notice.removeprefix("file:"))
        return lambda: str(path) if path.exists() else None
    if notice.startswith(("http://", "https://")):
        return lambda: _get(notice)
    provider, _, address = notice.partition("@")
    if provider == "aws":
        return lambda: _look_aws(address or _AWS)
    if provider == "gcp":
        return lambda: _get(f"{address or _GCP}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    if provider == "azure":
        return lambda: _look_azure(address or _AZURE)
    if notice in ("", "runpod"):  # SIGTERM is handled anyway
        return None
    raise UserError(f"{NOTICE_VARIABLE} is {notice!r}", "expected file:/path, an http URL, aws, gcp, azure or runpod")


def too_late(seconds: float, notice: str) -> str | None:
    """Return what to tell where a notice is shorter than a checkpoint needs to reach the mirror; None: it is not, or is none.

    Args:
        seconds: that a checkpoint takes to get there, by its size and the measured bandwidth.
        notice: as $WINDTUNNEL_SPOT_NOTICE has it.
    """
    provider = notice.partition("@")[0]
    given = NOTICE_SECONDS.get(provider)
    if given is None or seconds <= given:
        return None
    return (
        f"{provider} gives {given:.0f} s notice, and a checkpoint needs about {seconds:,.0f} s to reach the mirror: the steps"
        " after the last one that is there are trained again; lower checkpoints.every, or name a store nearer by"
    )


def _look_aws(address: str) -> str | None:
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html with an IMDSv2 token
    # Asked for each time: it lives a minute, and a look is due every five seconds.
    token = _get(f"{address}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    return _get(f"{address}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token or ""})


def _look_azure(address: str) -> str | None:
    # https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events: other kinds of events are no end of the machine,
    # and machines of the same set are told of each other's.
    text = _get(f"{address}/metadata/scheduledevents?api-version={_AZURE_VERSION}", {"Metadata": "true"})
    events = json.loads(text).get("Events", []) if text else []
    ends = [event for event in events if event.get("EventType") in ("Preempt", "Terminate")]
    query = f"api-version={_AZURE_VERSION}&format=text"
    name = _get(f"{address}/metadata/instance/compute/name?{query}", {"Metadata": "true"}) if ends else None
    found = next((event for event in ends if name is None or name in (event.get("Resources") or [name])), None)
    return f"{found['EventType']}, not before {found.get('NotBefore') or 'now'}" if found else None


def _get(url: str, headers: dict[str, str] | None = None, method: str = "GET") -> str | None:
    """Return the text at a URL; None where it is absent (404) or says no. Raises OSError."""
    from urllib.error import HTTPError  # with all of HTTP and mail behind it, which only a rented machine has use for
    from urllib.request import ProxyHandler, Request, build_opener

    request = Request(url, headers=headers or {}, method=method)
    # Straight to the machine's own service, whatever proxy the environment names.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT) as response:
            text = str(response.read(65_536).decode("utf-8", "replace")).strip()
    # 404 is AWS's way to say that there is no notice.
    except HTTPError:
        return None
    return None if text.lower() in _NOT_YET else text
