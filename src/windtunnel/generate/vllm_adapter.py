"""vLLM as a generator, in this process's service where there is a GPU. All that is known of vLLM's API stands here."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from windtunnel.recipe import UserError

from .folder_text import FolderText
from .protocol import Completion, GenerationFailed, GenerationJob, Notify, QueueFull, Stats, Ticket
from .text import TextCodec, TextStream, TokenInfo

log = logging.getLogger(__name__)
T = TypeVar("T")

VLLM_VERSIONS = ">=0.25.1,<0.33"
"""Of vLLM that are known to do what is asked of them: 0.25.1 was tried on a GPU, 0.32.0 on a CPU (vllm-export-cpu.json)."""


class AsyncEngine(Protocol):
    """What is used of vllm.v1.engine.async_llm.AsyncLLM."""

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> AsyncGenerator[Any, None]:
        """Yield RequestOutputs; closing it early aborts the request."""

    def shutdown(self) -> None:
        """End its processes."""

    @property
    def errored(self) -> bool:
        """Return whether it is dead."""


class VLLMGenerator:
    """A `Generator` around vLLM's AsyncLLM, which batches, keeps the cache and samples. Text is made as everywhere else here.

    Args:
        make: builds the engine, inside the event loop; again when it has died.
        params: builds vllm.SamplingParams from keywords.
        text: the model's tokenizer.
        context: most tokens of a sequence.
        slots: sequences that are decoded together.
        queue: sequences that may wait.

    Attributes:
        adapter: vLLM's LoRARequest for all that is asked from now on; None: the model by itself.
    """

    def __init__(
        self,
        make: Callable[[], AsyncEngine],
        params: Callable[..., Any],
        text: TextCodec,
        *,
        context: int,
        slots: int,
        queue: int = 0,
    ) -> None:
        self.text, self.context, self.vocab = text, context, text.vocab
        self.slots, self.queue, self.weights_version = slots, queue, 0
        self.stats = Stats()
        self.adapter: Any = None
        self._make, self._params = make, params
        self._engine: AsyncEngine | None = None
        self._open: set[Ticket] = set()
        self._names = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            # Started here, so that whoever makes a generator hears why it cannot be.
            asyncio.run_coroutine_threadsafe(self._living(), self._loop).result()
        except BaseException:
            self.close()
            raise

    @property
    def engine(self) -> Any:
        """Return vLLM's own engine, for what only it can do; by `call`."""
        return self._engine

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return what a coroutine of the engine's gives, from its event loop. Raises GenerationFailed when it takes longer."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)
        except TimeoutError:
            raise GenerationFailed(f"vLLM did not answer within {seconds:g} s") from None

    @property
    def alive(self) -> bool:
        """Return whether it can be expected to answer."""
        return self._thread.is_alive() and self._engine is not None and not self._engine.errored

    @property
    def running(self) -> int:
        """Return how many sequences are in slots."""
        return min(len(self._open), self.slots)

    @property
    def waiting(self) -> int:
        """Return how many sequences have no slot yet."""
        return max(0, len(self._open) - self.slots)

    def submit(
        self, jobs: Sequence[GenerationJob], notify: Notify | None = None, *, stream: bool = True, bounded: bool = True
    ) -> list[Ticket]:
        """Queue all of these jobs, or none. See `Generator`."""
        if not self._thread.is_alive():
            raise GenerationFailed("the generator is closed")
        # vLLM would queue without end; who waits here is told when to come again.
        if bounded and len(self._open) + len(jobs) > self.slots + self.queue:
            raise QueueFull(1)
        tickets = [Ticket(job, notify, stream) for job in jobs]
        for ticket in tickets:
            self._open.add(ticket)
            asyncio.run_coroutine_threadsafe(self._follow(ticket), self._loop)
        return tickets

    def generate(self, jobs: Sequence[GenerationJob]) -> list[Completion]:
        """Run jobs to their ends, however many. See `Generator`."""
        return [ticket.result() for ticket in self.submit(jobs, bounded=False)]

    def close(self) -> None:
        """End it; whoever still waits is told."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._engine is not None:
            self._engine.shutdown()

    async def _living(self) -> AsyncEngine:
        """Return the engine; a new one where the old one has died."""
        if self._engine is not None and self._engine.errored:
            log.error("vLLM's engine has died; it starts again")
            with contextlib.suppress(Exception):
                self._engine.shutdown()
            self._engine = None
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    async def _follow(self, ticket: Ticket) -> None:
        """Carry one job's tokens from vLLM to its ticket."""
        try:
            await self._generate(ticket)
            if not ticket.over:
                self.stats.cancelled += 1
        except asyncio.CancelledError:
            self._give_up(ticket, "the generator is closed")
            raise
        except Exception:
            log.exception("a sequence is given up")
            self._give_up(ticket, "its step failed")
        finally:
            self._open.discard(ticket)

    def _give_up(self, ticket: Ticket, why: str) -> None:
        self.stats.failed += 1
        if not ticket.over:
            ticket.add(GenerationFailed(why))
            ticket.tell()

    async def _generate(self, ticket: Ticket) -> None:
        job = ticket.job
        text = TextStream(self.text, job.stop, job.include_stop, job.prompt)
        engine = await self._living()
        outputs = engine.generate(
            {"prompt_token_ids": list(job.prompt)},
            self._params(**sampling_keywords(job, self.text.ends)),
            f"windtunnel-{next(self._names)}",
            **({} if self.adapter is None else {"lora_request": self.adapter}),
        )
        self.stats.prompt_tokens += len(job.prompt)
        # Closed whatever happens: only that frees the slot of a request that its reader has left.
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if ticket.cancelled:
                    return
                if job.score_prompt and output.prompt_logprobs and not ticket.prompt_infos:
                    ticket.prompt_infos = tuple(self._prompt_infos(job, output.prompt_logprobs))
                if self._advance(ticket, text, output.outputs[0]):
                    self.stats.finished += 1
                    if not output.finished:  # closing it aborts the rest
                        return

    def _advance(self, ticket: Ticket, text: TextStream, new: Any) -> bool:
        """Add new tokens to a ticket; return whether it is over."""
        job = ticket.job
        tokens = list(new.token_ids) if job.max_tokens else []
        self.stats.recent.append((time.monotonic(), len(tokens)))
        # vLLM has further reasons, of requests that it gave up.
        reason = {"stop": "stop", "length": "length"}.get(new.finish_reason or "")
        if new.finish_reason and reason is None:
            raise GenerationFailed(f"vLLM ended it: {new.finish_reason}")
        # Answers that span a change of the weights count as of the older ones.
        version = _version(new)
        for at, token in enumerate(tokens):
            if job.draws:
                ticket.drawn.append((token, new.logprobs[at][token].logprob))
                ticket.versions += [] if version is None else [version]
            if token in self.text.ends and not job.ignore_ends:
                reason = "stop"
                break
            ticket.tokens.append(token)
            self.stats.completion_tokens += 1
            p, top = log_probabilities(new.logprobs[at] if new.logprobs else None, token, job.logprobs)
            piece, stopped = text.push(token, p, top)
            if piece.text or piece.tokens:
                ticket.add(piece)
            if stopped:
                reason = "stop"
                break
        if reason:
            ticket.add(text.finish(reason if job.max_tokens else "length"))
        ticket.tell()
        return reason is not None

    def _prompt_infos(self, job: GenerationJob, scored: Sequence[dict[int, Any] | None]) -> list[TokenInfo]:
        stream, infos = TextStream(self.text), list[TokenInfo]()
        for token, found in zip(job.prompt, scored, strict=True):
            p, top = log_probabilities(found, token, job.logprobs)
            infos += stream.push(token, float("nan") if p is None else p, top)[0].tokens
        return infos + list(stream.finish("length").tokens)


def sampling_keywords(job: GenerationJob, ends: frozenset[int]) -> dict[str, Any]:
    """Return what vllm.SamplingParams is to be built with for a job. Stop strings are found here, in the text."""
    scored = None if job.logprobs is None else max(1, job.logprobs)
    drawn = 0 if job.draws else None
    return {
        "max_tokens": max(1, job.max_tokens),
        "temperature": job.temperature,
        "top_p": job.top_p,
        "top_k": job.top_k or -1,
        "seed": job.seed % 2**63,
        "stop_token_ids": [] if job.ignore_ends else sorted(ends),
        "ignore_eos": job.ignore_ends,
        "logprobs": drawn if scored is None else scored,
        "prompt_logprobs": scored if job.score_prompt else None,
        "flat_logprobs": job.draws,  # plain lists: an object for each token of long answers burdens the garbage collector
        "detokenize": False,
    }


def _version(new: Any) -> int | None:
    """Return the oldest version of the weights that gave an answer its tokens, where vLLM was told versions and names them."""
    names = [span.version for span in getattr(new, "weight_versions", None) or ()]
    return min((int(name) for name in names if name.isdigit()), default=None)


async def told_version(engine: Any, version: int) -> None:
    """Have vLLM write a version of the weights beside the tokens that it makes from now on, where it does (since 0.32)."""
    if hasattr(engine, "update_weight_version"):
        await engine.update_weight_version(str(version))


def log_probabilities(
    found: dict[int, Any] | None, token: int, count: int | None
) -> tuple[float | None, dict[int, float] | None]:
    """Return a token's log-probability and those of the `count` likeliest, from one position's token id → vllm.Logprob."""
    if found is None or count is None or token not in found:
        return None, None
    # vLLM adds the token itself where it is not among the likeliest.
    likeliest = sorted(found.items(), key=lambda item: -item[1].logprob)[:count]
    return found[token].logprob, {other: value.logprob for other, value in likeliest}


def load_vllm(folder: Path, *, slots: int, queue: int, **arguments: Any) -> VLLMGenerator:
    """Return a generator with vLLM for a Hugging Face folder.

    Args:
        folder: the model.
        slots: sequences that are decoded together.
        queue: sequences that may wait.
        arguments: more of vLLM's AsyncEngineArgs, such as tensor_parallel_size.

    Raises:
        UserError: vLLM is not there, not of a version that is known, or refuses the model.
    """
    from .hf import end_tokens

    return open_vllm(folder, lambda vocab: FolderText(folder, end_tokens(folder)), slots=slots, queue=queue, **arguments)


def open_vllm(folder: Path, text: Callable[[int], TextCodec], *, slots: int, queue: int, **arguments: Any) -> VLLMGenerator:
    """Return a generator with vLLM for a Hugging Face folder; see `load_vllm`.

    Args:
        folder: the model.
        text: makes its tokenizer from the size of the model's vocabulary.
        slots: sequences that are decoded together.
        queue: sequences that may wait.
        **arguments: more of vLLM's AsyncEngineArgs.

    Raises:
        UserError: vLLM is not there, not of a version that is known, or refuses the model.
    """
    check_version()
    SamplingParams, RequestOutputKind, AsyncEngineArgs, AsyncLLM = import_vllm()
    asked = AsyncEngineArgs(model=str(folder), max_num_seqs=slots, enable_log_requests=False, **arguments)
    try:
        # Before any weight is read: most of what vLLM refuses shows in the config.
        config = asked.create_engine_config()
        return VLLMGenerator(
            lambda: AsyncLLM.from_vllm_config(config),
            lambda **keywords: SamplingParams(output_kind=RequestOutputKind.DELTA, **keywords),
            text(config.model_config.get_vocab_size()),
            context=config.model_config.max_model_len,
            slots=slots,
            queue=queue,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(f"vLLM cannot serve {folder}: {str(error).splitlines()[0]}", "use --backend transformers") from None


def import_vllm() -> tuple[Any, Any, Any, Any]:
    """Return SamplingParams, RequestOutputKind, AsyncEngineArgs and AsyncLLM. The first time it takes tens of seconds."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    return SamplingParams, RequestOutputKind, AsyncEngineArgs, AsyncLLM


def known_vllm(version: str) -> bool:
    """Return whether a version of vLLM is one that this package works with."""
    try:
        return SpecifierSet(VLLM_VERSIONS, prereleases=True).contains(version)
    except InvalidVersion:
        return False


def check_version() -> None:
    """Check that vLLM is there in one of these versions. Raises UserError."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError("vLLM is not installed here", "pip install vllm, on a machine with a GPU; or --backend transformers")
    from vllm import __version__ as version  # the build for CPUs is a distribution of another name

    if not known_vllm(version):
        raise UserError(f"vLLM {version} is not a version that is known here ({VLLM_VERSIONS})", "use --backend transformers")
