"""What errors of Hugging Face's hub mean: whether to wait and try again, and what to tell whoever wants a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windtunnel.recipe import UserError

from .known import hub_id

Say = Callable[[str], None]
LONGEST_WAIT = 3600.0
"""Seconds that a server may ask to wait; where it asks for more, that long."""


def passes(error: Exception) -> bool:
    """Return whether trying again may help: a connection that broke, a server that is overloaded, an address that expired."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        # 403 of a storage server means an address that has expired; of the hub itself, a gate.
        code = error.response.status_code if error.response is not None else 0
        return code >= 500 or code in (408, 429) or (code == 403 and _is_elsewhere(error.response))
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return isinstance(error, OSError) or is_of_the_network(error)


def answer_of(error: Exception) -> Any:
    """Return the HTTP response that an error of the hub's client is about; None where none came."""
    from huggingface_hub.errors import HfHubHTTPError

    return error.response if isinstance(error, HfHubHTTPError) else None


def _is_elsewhere(answer: Any) -> bool:
    """Return whether the answer is of a server that the hub sent us to: files lie on others, under addresses that expire."""
    from huggingface_hub import constants

    return not str(answer.url).startswith(constants.ENDPOINT)


def told_wait(error: Exception, least: float, what: str, say: Say) -> float:
    """Return the seconds until the next attempt: at least so many, longer where the server asks for it; and say so."""
    answer = answer_of(error)
    asked = str(answer.headers.get("Retry-After", "")) if answer is not None else ""
    seconds = max(least, min(LONGEST_WAIT, float(asked))) if asked.isdecimal() else least
    say(f"{what}: {_first_line(error)}; again in {seconds:,.0f} s")
    return seconds


def _first_line(error: Exception) -> str:
    """Return what an error says, short, and without the address: it may hold a signature."""
    answer = answer_of(error)
    if answer is not None:
        return f"{answer.url.host} answers {answer.status_code} {answer.reason_phrase or ''}".rstrip()
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def is_of_the_network(error: Exception) -> bool:
    """Return whether an exception is the hub's, or one of the HTTP clients' that its package has used."""
    return type(error).__module__.split(".")[0] in ("huggingface_hub", "hf_xet", "httpx", "httpx2", "requests", "urllib3")


def refusal(identity: str, error: Exception) -> UserError:
    """Return what an error of the hub means, and how to go on."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return UserError(
            f"fetch: {identity} is gated: its owner gives it to those who have accepted the terms",
            f"accept them on https://huggingface.co/{identity}, then: hf auth login; or {by_hand(identity)}",
        )
    if isinstance(error, RepositoryNotFoundError):
        return UserError(f"fetch: there is no {identity} on the hub, or it is private", f"hf auth login; or {by_hand(identity)}")
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return UserError(
            f"fetch: {error.filename or 'the folder'} cannot be written: {error.strerror}",
            "make room or name another folder with --to FOLDER; the same command goes on with what has come",
        )
    answer, again = answer_of(error), "run the same command again: it goes on with what has come"
    if answer is not None and answer.status_code in (401, 403) and not _is_elsewhere(answer):
        return UserError(
            f"fetch: the hub refuses this account's token for {identity} ({answer.status_code})",
            f"hf auth login, or correct HF_TOKEN; or {by_hand(identity)}",
        )
    other = "windtunnel fetch smollm2-135m-instruct (PyPI has that one too); or " if "smollm2-135m" in identity.lower() else ""
    if answer is not None:
        later = f"{again}; or " if passes(error) else ""
        return UserError(f"fetch: files of {identity}: {_first_line(error)}", later + other + by_hand(identity))
    return UserError(f"fetch: Hugging Face's hub cannot be reached: {_first_line(error)}", other + by_hand(identity))


def by_hand(name: str) -> str:
    """Say how a folder comes to a machine without a network."""
    identity = hub_id(name) or name
    return (
        f"on a machine that has it: hf download {identity} --local-dir FOLDER; copy FOLDER here, then --set model.config=FOLDER"
    )
