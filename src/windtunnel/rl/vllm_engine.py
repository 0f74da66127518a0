"""vLLM as an engine beside the learners. It runs under an interpreter that has vLLM: `python -m windtunnel.rl.vllm_engine FD`.

A version of the weights counts as taken when every worker rank has shown what it has of it (version, and sampled values against
the files) and the canary is scored as the learner scores it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.generate import GenerationJob, NoText, Notify, Ticket, VLLMGenerator, import_vllm, open_vllm, told_version

from .canary import Canary
from .engine import NOTHING, Receipt, Scores, Serving, opened, require_canary
from .engine_process import answer_calls
from .errors import BrokenSnapshot, StaleWeights
from .snapshot import CONFIG
from .transfer import Invitation
from .vllm_adapters import RANKS, request
from .vllm_worker import STARTER

log = logging.getLogger(__name__)

SOCKETS, SOCKETS_PREFIX = "VLLM_RPC_BASE_PATH", "wt-vllm-"
"""Environment: where vLLM's processes have their sockets."""
WORKER = f"{__package__}.vllm_adapters.AdapterReceipts"
TIMEOUT_SECONDS = 600.0
TOKENS_AT_A_TIME = 32
"""Tokens of an answer that vLLM tells together; also how often it shows that it goes on."""
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
"""What torchrun, or this package in its place, tells a rank."""


@dataclass(frozen=True)
class VLLMSettings:
    """How vLLM is started.

    Attributes:
        tensor: ranks that share the weights. memory: share of a GPU for weights and cache.
        devices: numbers of those GPUs that this process sees, "0,1"; None: a CPU.
        worker: extension of vLLM's workers.
        log: what it prints goes to the end of this file.
        python: the interpreter.
        adapter: of adapter_config.json, where it gets adapters beside its weights.
    """

    tensor: int
    memory: float
    devices: str | None
    log: Path
    worker: str = WORKER
    python: str = sys.executable
    adapter: dict[str, Any] | None = None


class VLLMEngine:
    """`InferenceEngine` with vLLM: the same methods, but for `generate` and `save`.

    Args:
        dtype: see `InferenceEngine`.
        serving: see `InferenceEngine`.
        settings: of vLLM.

    Attributes:
        version: see `InferenceEngine`; NOTHING while a version is being taken, and after one was refused.
    """

    def __init__(self, dtype: torch.dtype, serving: Serving, settings: VLLMSettings) -> None:
        self._dtype, self._serving, self._settings = dtype, serving, settings
        self._generator: VLLMGenerator | None = None
        self.version = NOTHING

    def load(self, path: Path, version: int) -> Receipt:
        """Take a version from its folder; see `InferenceEngine.load`. What is refused leaves the engine without weights.

        Raises:
            StaleWeights: the folder, or a worker, has another version.
            BrokenSnapshot: a file is damaged, a rank has other values than the files, or the canary is scored otherwise.
        """
        began, snapshot = time.monotonic(), opened(path, version)
        self.version = NOTHING
        if self._generator is None:
            # The canary may be longer than any answer, and vLLM scores nothing beyond its length.
            length = 0 if snapshot.canary is None else snapshot.canary.tokens.size(1)
            self._generator = self._start(path, max(self._serving.tokens, length + 1))
            self._workers("windtunnel_begin", version)
            self._run(told_version(self._generator.engine, version))
        else:
            self._run(self._take(version, "windtunnel_take", str(path), version))
        ranks = self._workers("windtunnel_receipt", str(path), version)
        self._require(ranks, version)
        agreed = None if snapshot.canary is None else require_canary(path.name, snapshot.canary, self._score)
        self.version = version
        size = sum(written.bytes for written in snapshot.files.values())
        return Receipt(version, len(snapshot.tensors), size, agreed, time.monotonic() - began, tuple(ranks))

    def prepare(self, config: dict[str, Any], tokens: int, base: Path | None = None) -> None:
        """Start, where it has not, with weights that mean nothing, or with those for adapters. See `InferenceEngine.prepare`."""
        if self._generator is not None:
            return
        longest = max(self._serving.tokens, tokens + 1)
        if base is not None:
            snapshot = opened(base, 0)
            self._generator = self._start(snapshot.path, longest, **self._room_for_adapters())
            self._workers("windtunnel_begin", 0)
            self._require(self._workers("windtunnel_receipt", str(base), 0), 0)
            return
        # vLLM only takes a folder; config.json alone is enough for weights that mean nothing.
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / CONFIG).write_text(json.dumps(config), encoding="utf-8")
            self._generator = self._start(Path(folder), longest, load_format="dummy")

    def join(self, invitation: Invitation) -> None:
        """Join a learner's group, every worker, to receive weights from it. See `InferenceEngine.join`."""
        self._workers("windtunnel_join", asdict(invitation))

    def receive(
        self, version: int, config: dict[str, Any], canary: dict[str, Any], adapter: dict[str, Any] | None = None
    ) -> Receipt:
        """Take a version from the learner; see `InferenceEngine.receive`. What is refused leaves the engine without weights.

        Raises:
            StaleWeights: a worker has another version.
            BrokenSnapshot: what came is not what was sent, a rank has other values, or the canary is scored otherwise.
            GenerationFailed: the learner gave up, or a worker could not go on.
        """
        began = time.monotonic()
        assert self._generator is not None
        self.version = NOTHING
        if adapter is None:
            ranks = self._run(self._take(version, "windtunnel_receive", version))
        else:
            ranks = self._run(self._take(version, "windtunnel_receive_adapter", version, adapter))
            self._generator.adapter = request("/")  # by its number: all workers have it
        self._require(ranks, version)
        agreed = require_canary(f"version {version}", Canary.from_json(canary), self._score)
        self.version = version
        return Receipt(version, ranks[0]["tensors"], ranks[0]["bytes"], agreed, time.monotonic() - began, tuple(ranks))

    def score(self, tokens: Tensor) -> Scores:
        """See `InferenceEngine.score`."""
        if self.version == NOTHING:
            raise StaleWeights("the engine has no weights yet")
        return Scores(self.version, self._score(tokens))

    def submit(self, jobs: Sequence[GenerationJob], notify: Notify) -> list[Ticket]:
        """Answer jobs; an engine that dies ends the process, so that they are asked again."""
        assert self._generator is not None
        if self.version == NOTHING:
            os._exit(70)  # it refused its weights: nothing may be answered by them
        generator = self._generator

        def done(ticket: Ticket) -> None:
            if not generator.alive:
                os._exit(71)
            notify(ticket)

        return generator.submit(jobs, done, stream=False, bounded=False)

    @property
    def progress(self) -> int:
        """Return a number that grows while jobs are answered."""
        stats = None if self._generator is None else self._generator.stats
        return 0 if stats is None else stats.prompt_tokens + stats.completion_tokens

    def close(self) -> None:
        """End vLLM and its workers."""
        if self._generator is not None:
            self._generator.close()

    def _start(self, path: Path, tokens: int, **more: Any) -> VLLMGenerator:
        """Return vLLM with the weights of a folder, for texts of so many tokens; `more` arguments of vLLM."""
        settings, serving = self._settings, self._serving
        arguments: dict[str, Any] = {
            "dtype": str(self._dtype).removeprefix("torch."), "skip_tokenizer_init": True, "max_model_len": tokens,
            "tensor_parallel_size": settings.tensor, "worker_extension_cls": settings.worker, "disable_log_stats": True,
            "logprobs_mode": "processed_logprobs", "enable_prefix_caching": False, "generation_config": "vllm",
            # Nobody reads along: of 256 answers at a time, telling each token cost more than computing it.
            "stream_interval": TOKENS_AT_A_TIME,
        }  # fmt: skip
        if settings.devices is None:
            arguments["enforce_eager"] = True
        else:
            arguments["gpu_memory_utilization"] = settings.memory
        text = partial(NoText, ends=serving.ends)
        return open_vllm(path, text, slots=serving.slots, queue=0, **arguments, **more)

    def _room_for_adapters(self) -> dict[str, Any]:
        """Return arguments of vLLM. Layers that no adapter is for stay as they are: beside one vLLM's head scores no prompts."""
        adapter = self._settings.adapter
        assert adapter is not None
        room = next(rank for rank in RANKS if rank >= adapter["r"])
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room, "lora_target_modules": adapter["target_modules"]}

    async def _take(self, version: int, method: str, *arguments: Any) -> list[Any]:
        """Change the weights while nothing is generated, and forget what the old ones left in caches; what workers gave."""
        assert self._generator is not None
        engine = self._generator.engine
        # Answers under way are finished first: vLLM cannot go on with them by other weights.
        await engine.pause_generation(mode="wait", clear_cache=True)
        try:
            found: list[Any] = await engine.collective_rpc(method, args=arguments)
            await told_version(engine, version)
        finally:
            await engine.resume_generation()
        return found

    def _require(self, ranks: Sequence[dict[str, Any]], version: int) -> None:
        """Refuse what a worker rank has not taken as it should have."""
        if sorted(one["rank"] for one in ranks) != list(range(self._settings.tensor)):
            raise StaleWeights(f"{len(ranks)} of {self._settings.tensor} worker ranks gave a receipt")
        for one in ranks:
            name = f"worker rank {one['rank']} of {self._settings.tensor}"
            if one["version"] != version:
                raise StaleWeights(f"{name} has version {one['version']} of the weights, asked for was version {version}")
            if one["wrong"] or one["found"] != one["expected"]:
                more = f" and {len(one['wrong']) - 1} more" if len(one["wrong"]) > 1 else ""
                raise BrokenSnapshot(f"{name}: {one['wrong'][0]}{more} is not what was published as version {version}")
            if not one["compared"]:
                raise BrokenSnapshot(f"{name}: of {len(one['unseen'])} parameters none can be compared with the files")
            if one["unseen"]:
                log.warning("%s: only the canary vouches for %s", name, ", ".join(one["unseen"]))

    def _score(self, tokens: Tensor) -> Tensor:
        """Return log-probabilities (B, T - 1) fp32 of tokens (B, T), each given those before it."""
        assert self._generator is not None
        # Prompts are scored by the very kernels that answer, so that the canary speaks for them.
        jobs = [GenerationJob(tuple(row), 0, score_prompt=True, logprobs=0) for row in tokens.tolist()]
        found = self._generator.generate(jobs)
        return torch.tensor([[info.log_probability for info in one.prompt_infos[1:]] for one in found])

    def _workers(self, method: str, *arguments: Any) -> list[Any]:
        assert self._generator is not None
        found: list[Any] = self._run(self._generator.engine.collective_rpc(method, args=arguments))
        return found

    def _run(self, work: Any) -> Any:
        assert self._generator is not None
        return self._generator.call(work, TIMEOUT_SECONDS)


class Interpreter:
    """A process of another interpreter, with what is used of `multiprocessing.Process`; `kill` ends all that it started.

    Its sockets lie in a folder of their own, which goes with it: vLLM itself leaves them where it is killed.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], descriptor: int, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._sockets = tempfile.mkdtemp(prefix=SOCKETS_PREFIX)  # short: a socket's path has 107 bytes
        environment = {**environment, SOCKETS: self._sockets}
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command, env=environment, pass_fds=(descriptor,), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.pid, self._ended = self._popen.pid, False

    @property
    def exitcode(self) -> int | None:
        """Return what it ended with; None: it runs."""
        return self._popen.poll()

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._popen.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, no longer than this; then end what it left behind."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)
            # Where it was killed, vLLM's core lives on, and keeps the GPU's memory.
            self.kill()
            self._ended = True
            shutil.rmtree(self._sockets, ignore_errors=True)

    def kill(self) -> None:
        """End it and its workers at once."""
        if self._ended:
            return  # by now its number may be another's
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all gone, and the number is another user's by now
            os.killpg(self.pid, signal.SIGKILL)


def start_vllm(dtype: torch.dtype, serving: Serving, settings: VLLMSettings) -> tuple[Connection, Interpreter]:
    """Start vLLM's process; its pipe, and the process."""
    ours, theirs = Pipe()
    environment = engine_environment(os.environ, settings)
    command = [settings.python, "-m", __name__, str(theirs.fileno())]
    process = Interpreter(command, environment, theirs.fileno(), settings.log)
    theirs.close()
    with contextlib.suppress(OSError):
        ours.send((dtype, serving, settings))
    return ours, process


def engine_environment(environ: Mapping[str, str], settings: VLLMSettings) -> dict[str, str]:
    """Return the environment of vLLM's process: this one's, without what makes it one of the learners."""
    # Its interpreter may have no windtunnel installed: this tree's own is put before all else.
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [environ.get("PYTHONPATH")])]
    # vLLM makes a process group of its own. With the learners' variables it would look for their store, and wait for it for ever.
    kept = {name: value for name, value in environ.items() if name not in RANK_VARIABLES and not name.startswith("TORCHELASTIC_")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), "VLLM_NO_USAGE_STATS": "1"}
    # Answers have seeds of their own, which its sampler does not know; vLLM looks for it all the same, and fails without it.
    environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if settings.devices is None:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        if settings.tensor > 1:
            # A core for each rank, so that no two compute on the same one.
            cores = sorted(os.sched_getaffinity(0))
            environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(str(core) for core in cores[: settings.tensor]))
    else:
        environment["CUDA_VISIBLE_DEVICES"] = _named(settings.devices, environ.get("CUDA_VISIBLE_DEVICES"))
    return environment


def _named(devices: str, visible: str | None) -> str:
    """Return CUDA_VISIBLE_DEVICES for GPUs by their numbers in this process, of which only `visible` ones may be seen."""
    if not visible:
        return devices
    names = visible.split(",")
    return ",".join(names[int(number)] for number in devices.split(","))


def main(descriptor: int) -> None:
    """Serve the other end of a pipe until it hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.environ[STARTER] = str(os.getpid())
    port = Connection(descriptor)
    engine = VLLMEngine(*port.recv())
    with contextlib.suppress(Exception):  # whoever asks first is told why
        import_vllm()  # while the learner loads: it takes tens of seconds
    try:
        answer_calls(port, engine)
    finally:
        engine.close()
        sockets = Path(os.environ.get(SOCKETS, ""))
        if sockets.name.startswith(SOCKETS_PREFIX):
            shutil.rmtree(sockets, ignore_errors=True)  # who started this may have been killed


if __name__ == "__main__":
    main(int(sys.argv[1]))
