"""The trained scale model behind `windtunnel serve`, queried over HTTP as a client would."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.check import CheckFailed, Evidence, Say

from .context import Rehearsal, Stage, has_text
from .processes import TICK, Child

if TYPE_CHECKING:
    import httpx

START_SECONDS = 120.0
ANSWER_SECONDS = 120.0
STOP_SECONDS = 30.0
TOKENS = 16
CLIENTS = 8


def serve(rehearsal: Rehearsal, say: Say) -> Evidence:
    """Ask the server what the model itself has answered."""
    run = rehearsal.run
    assert run is not None
    prompt, expected = _greedy(rehearsal, say)
    numbers = ask_server(rehearsal, lambda client: _ask(client, prompt, expected, run, say), say)
    text = (
        f"{prompt!r} answered {expected!r} over HTTP, as generated directly; streamed the same; {CLIENTS} clients at once; "
        f"first token after {1000 * numbers['first_token_seconds']:.0f} ms; SIGTERM ended it"
    )
    return Evidence(text, numbers)


def ask_server(rehearsal: Rehearsal, ask: Callable[[httpx.Client], dict[str, Any]], say: Say) -> dict[str, Any]:
    """Serve the run on a free port, put questions, and stop the server; returns what `ask` found. Raises CheckFailed."""
    import httpx

    command = ["-m", "windtunnel", "serve", str(rehearsal.run), "--port", "0", "--device", rehearsal.device]
    with Child(command, rehearsal.folder / "serve.log") as child:
        say("starting")
        # Past any proxy: this machine alone is asked.
        with httpx.Client(base_url=_address(child), timeout=ANSWER_SECONDS, trust_env=False) as client:
            try:
                found = ask(client)
            except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
                raise CheckFailed(f"{type(error).__name__}: {error}; the server's last words: {child.last_words()}") from None
        say("stopping")
        _stop(child)
    return found


def _stop(child: Child) -> None:
    """End a server by SIGTERM. Raises CheckFailed where it goes on or ends badly."""
    child.terminate()
    limit = time.monotonic() + STOP_SECONDS
    while child.running and time.monotonic() < limit:
        time.sleep(TICK)
    if child.running:
        raise CheckFailed(f"the server goes on {STOP_SECONDS:.0f} s after SIGTERM")
    code = child.process.wait()
    if code != 0:
        raise CheckFailed(f"the server ended with exit code {code} after SIGTERM: {child.last_words()}")


def _address(child: Child) -> str:
    """Return the URL that a server prints once it answers. Raises CheckFailed."""
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        for line in child.lines():
            found = re.search(r" on (http://\S+)", line)
            if found:
                return found[1]
        if not child.running:
            raise CheckFailed(f"`windtunnel serve` ended with exit code {child.process.returncode}: {child.last_words()}")
        time.sleep(TICK)
    raise CheckFailed(f"the server does not answer after {START_SECONDS:.0f} s: {child.last_words()}")


def _greedy(rehearsal: Rehearsal, say: Say) -> tuple[str, str]:
    """Return a prompt of the held-out data, and how the model goes on from it greedily."""
    from contextlib import closing

    from windtunnel.generate import GenerationJob, load_run

    assert rehearsal.run is not None
    say("generating without the server, to compare")
    loaded = load_run(rehearsal.run, device=rehearsal.device)
    # Held-out text without the token that begins a document, which the server puts there itself.
    document = loaded.tokenizer.decode(rehearsal.prepared.validation.array[1:25])
    question, mark, _ = document.partition("B")
    if rehearsal.prepared.corpus == "arithmetic" and mark:
        prompt = question + mark
    else:
        prompt = document[:12].rstrip("\ufffd")  # tokens may end inside a character
    with closing(loaded.generator([prompt], TOKENS)) as generator:
        (answer,) = generator.generate([GenerationJob(tuple(generator.text.encode(prompt)), TOKENS, temperature=0)])
    return prompt, answer.text


def _ask(client: httpx.Client, prompt: str, expected: str, run: Path, say: Say) -> dict[str, Any]:
    say("asking /health and /v1/models")
    expect(client.get("/health"), 200)
    models = expect(client.get("/v1/models"), 200)["data"]
    name = models[0]["id"]
    if name != run.name:
        raise CheckFailed(f"/v1/models names {name!r}, not the run {run.name!r}")
    body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    say("asking /v1/completions")
    began = time.monotonic()
    answer = expect(client.post("/v1/completions", json=body), 200)
    seconds = time.monotonic() - began
    text = answer["choices"][0]["text"]
    if text != expected:
        raise CheckFailed(f"{prompt!r}: the server answers {text!r}, the model itself {expected!r}")
    say("streaming")
    streamed, first = stream(client, "/v1/completions", body)
    if streamed != expected:
        raise CheckFailed(f"{prompt!r}: streamed {streamed!r}, answered at once {expected!r}")
    say(f"{CLIENTS} clients at once")
    _together(client, body, expected)
    say("a request that is wrong")
    # A server that breaks down over a wrong request would serve nobody else.
    wrong = client.post("/v1/completions", json=body | {"max_tokens": "many"})
    if wrong.status_code != 400:
        raise CheckFailed(f"max_tokens 'many' is answered {wrong.status_code}, not 400")
    return {"completion": text, "seconds": seconds, "first_token_seconds": first, "clients": CLIENTS}


def stream(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[str, float]:
    """Return the text of a streamed completion or chat, and the seconds until its first token. Raises CheckFailed."""
    began, first, text, done = time.monotonic(), 0.0, "", False
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        if response.status_code != 200:
            raise CheckFailed(f"{path}: streaming is answered {response.status_code}")
        for line in response.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                first = first or time.monotonic() - began
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
    if not done:
        raise CheckFailed(f"{path}: the stream ended without data: [DONE]")
    return text, first


def _together(client: httpx.Client, body: dict[str, Any], expected: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(CLIENTS)))
    for answer in answers:
        text = expect(answer, 200)["choices"][0]["text"]
        if text != expected:
            raise CheckFailed(f"{CLIENTS} clients at once: one got {text!r}, alone it is {expected!r}")


def expect(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the JSON of an answer. Raises CheckFailed where its status is another."""
    if response.status_code != status:
        raise CheckFailed(f"{response.request.url.path} is answered {response.status_code}: {response.text[:200]}")
    value = response.json()
    return value if isinstance(value, dict) else {"data": value}


CHECKS = (
    Stage(
        "serve",
        "over HTTP it answers what the model generates, to several clients",
        "read serve.log in the rehearsal's folder; the server must be able to open a port on 127.0.0.1",
        serve,
        shows="end",
        needs=("resume",),
        applies=has_text,
    ),
)
