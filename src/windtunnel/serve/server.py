"""windtunnel serve: load the model, bind the port, answer until told to stop."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from windtunnel.recipe import UserError
from windtunnel.web import Access, listening, url_of


def serve(
    run: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    insecure: bool = False,
    origins: tuple[str, ...] = (),
    on_ready: Callable[[str], None] | None = None,
    **model: Any,
) -> None:
    """Serve a run's best checkpoint, an exported or a Hugging Face folder, until SIGTERM or SIGINT.

    Requests under way are finished first.

    Args:
        run: a run's folder, or a folder of weights.
        host: address to listen on.
        port: 0 takes any free one.
        token: bearer token that clients must send; None: $WINDTUNNEL_TOKEN, if set.
        insecure: allow other addresses than loopback without a token.
        origins: addresses whose web pages may ask ('https://app.example'), or '*'.
        on_ready: told the URL once requests are answered; None prints it.
        model: how the model is loaded: see `windtunnel.generate.load_source`.

    Raises:
        UserError: the address is taken or not this machine's, it is open to others without a token, or there is no model.
    """
    # Before anything is loaded: a page's address is often pasted with its path.
    for origin in origins:
        parts = urlsplit(origin)
        if origin != "*" and (parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query):
            raise UserError(f"--allow-origin {origin}: no address of web pages", "such as https://app.example, or '*'")
    access = replace(Access.of(host, token, what="use the model", port=8000, insecure=insecure), origins=origins)
    # Bound before the model is loaded: a port in use is known at once.
    with contextlib.closing(listening(host, port)) as listener:
        from windtunnel.generate import load_source

        source = load_source(run, **model)
        for warning in source.warnings:
            print(f"warn: {warning}", file=sys.stderr, flush=True)
        from windtunnel.web import serve_app

        # Now, beside a model that is loaded: FastAPI is not needed to refuse a port.
        from .app import create_app

        app = create_app(source.generator, model=source.name, limits=source.limits, access=access, created=source.created)
        announce = on_ready or (lambda address: print(f"serving {source.name} ({source.what}) on {address}", flush=True))
        try:
            serve_app(app, listener, lambda: announce(url_of(host, listener)))
        finally:
            source.generator.close()
