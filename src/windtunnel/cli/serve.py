"""windtunnel serve: answer OpenAI-compatible requests with a run's best checkpoint."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .options import DEFAULT_ROOT, BaseOption, RootOption, RunArgument, StepOption, SupervisionOption, find_run


def serve(
    run: RunArgument,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port, which is printed.")] = 8000,
    token: Annotated[
        str | None, typer.Option("--token", envvar="WINDTUNNEL_TOKEN", help="Require this bearer token.", show_envvar=True)
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; otherwise the GPU if there is one.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without a token.")] = False,
    allow_origin: Annotated[
        list[str] | None, typer.Option("--allow-origin", metavar="URL", help="Answer web pages of this address too (repeatable).")
    ] = None,
    step: StepOption = None,
    supervision: SupervisionOption = None,
    backend: Annotated[
        Literal["transformers", "vllm"], typer.Option("--backend", help="What runs a Hugging Face folder.")
    ] = "transformers",
    base: BaseOption = None,
    root: RootOption = DEFAULT_ROOT,
) -> None:
    """Serve /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics and a page at /.

    RUN is a run, an exported folder, or any Hugging Face folder of a causal language model.
    """
    folder = find_run(run, root)

    from windtunnel.serve import serve as serve_run

    serve_run(
        folder, host=host, port=port, token=token, step=step, device=device, insecure=insecure, supervision=supervision,
        backend=backend, base=base, origins=tuple(allow_origin or ()),
    )  # fmt: skip
