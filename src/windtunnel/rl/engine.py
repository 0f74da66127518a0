"""The reference engine: transformers on whatever device there is. It loads published weights or refuses them, and answers.

It is slow and simple on purpose: what another engine computes is judged by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from windtunnel.generate import BatchedGenerator, GenerationJob, NoText, Notify, Ticket, hf_decoder
from windtunnel.model import merge_adapter

from .canary import Canary
from .errors import BrokenSnapshot, DifferentScores, StaleWeights
from .mismatch import Mismatch
from .receive import WeightReceiver
from .snapshot import WeightSnapshot, open_snapshot
from .transfer import Invitation

A, B, PREFIX = ".lora_A.weight", ".lora_B.weight", "base_model.model."
NOTHING = -1
"""The version of an engine that has loaded none."""


@dataclass(frozen=True)
class Receipt:
    """What an engine has after loading: which version, how many tensors and bytes, and how it scores the canary.

    `ranks`: of an engine of several workers, what each of them has; see `WeightReceipts`.
    """

    version: int
    tensors: int
    bytes: int
    canary: Mismatch | None
    seconds: float
    ranks: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Serving:
    """How an engine answers: sequences at a time, most tokens of one, and the tokens that end it."""

    slots: int
    tokens: int
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Scores:
    """(B, T - 1) fp32 log-probabilities in nats, and the version of the weights that gave them."""

    version: int
    log_probabilities: Tensor


@dataclass(frozen=True)
class Answers:
    """(B, N) int64 sampled tokens, (B, N) fp32 log-probabilities of each as it was sampled, and the weights' version."""

    version: int
    tokens: Tensor
    log_probabilities: Tensor


class InferenceEngine:
    """An engine in this process.

    Args:
        dtype: that it holds and computes in; weights published in another are refused, not converted.
        device: where it computes.
        serving: how jobs are answered; None: there will be none.

    Attributes:
        version: of the weights that it has; NOTHING at first.
    """

    def __init__(self, dtype: torch.dtype, device: str = "cpu", serving: Serving | None = None) -> None:
        self._dtype, self._device, self._serving = dtype, device, serving
        self._model: PreTrainedModel | None = None
        self._generation: BatchedGenerator | None = None
        self._receiver: WeightReceiver | None = None
        self._base: dict[str, Tensor] = {}
        self.version = NOTHING

    def load(self, path: Path, version: int) -> Receipt:
        """Take a version from its folder. Until all of it has been proven good, the engine keeps what it has.

        Raises:
            StaleWeights: the folder holds another version than was asked for.
            BrokenSnapshot: a file is damaged, a tensor is missing, left over, of another shape or dtype, or the canary
                is scored otherwise than the learner did.
        """
        began = time.monotonic()
        snapshot = opened(path, version)
        # Dtypes as they were published: transformers would convert in silence.
        given = {name: entry.dtype for name, entry in snapshot.tensors.items()}
        model = self._build(path.name, given, pretrained_model_name_or_path=path)
        found = None if snapshot.canary is None else require_canary(path.name, snapshot.canary, partial(_score, model))
        self._go_over_to(model, version)
        size = sum(written.bytes for written in snapshot.files.values())
        return Receipt(version, len(snapshot.tensors), size, found, time.monotonic() - began)

    def prepare(self, config: dict[str, Any], tokens: int, base: Path | None = None) -> None:
        """Be ready to join; a model is made when its weights are there.

        Args:
            config: of config.json.
            tokens: of the longest sequence that will be scored.
            base: folder of the weights beside which adapters will stand, version 0; None: all weights will be received.

        Raises:
            StaleWeights, BrokenSnapshot: the folder is not that version, or not whole.
        """
        if base is not None and not self._base:
            opened(base, 0)
            self._base = {name: tensor for file in sorted(base.glob("*.safetensors")) for name, tensor in load_file(file).items()}

    def join(self, invitation: Invitation) -> None:
        """Join a learner's group, to receive weights from it. Raises RuntimeError where it cannot be reached in time."""
        self._receiver = None
        self._receiver = WeightReceiver(invitation, 0, torch.device("cpu" if invitation.way == "gloo" else self._device))

    def receive(
        self, version: int, config: dict[str, Any], canary: dict[str, Any], adapter: dict[str, Any] | None = None
    ) -> Receipt:
        """Take a version from the learner that was joined. Until all of it has been proven good, the engine keeps what it has.

        Args:
            version: that the learner sends.
            config: of config.json.
            canary: as `Canary.as_json` gives it.
            adapter: of adapter_config.json, where adapters come for the weights that it was prepared with.

        Raises:
            BrokenSnapshot: what came is not what was sent, not the model's, or the canary is scored otherwise.
            RuntimeError: the learner gave up, or did not go on in time.
        """
        began, of = time.monotonic(), f"version {version}"
        assert self._receiver is not None
        # All of it before anything is replaced: half a version must never answer.
        weights = {name: tensor for bucket in self._receiver.receive(version) for name, tensor in bucket}
        weights = weights if adapter is None else self._adapted(of, weights, adapter)
        dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in weights.items()}
        # By class and config, as there is no folder that the Auto classes could look into.
        kind, settings = getattr(transformers, config["architectures"][0]), AutoConfig.for_model(**config)
        model = self._build(of, dtypes, kind, pretrained_model_name_or_path=None, config=settings, state_dict=weights)
        found = require_canary(of, Canary.from_json(canary), partial(_score, model))
        self._go_over_to(model, version)
        return Receipt(version, self._receiver.tensors, self._receiver.bytes, found, time.monotonic() - began)

    def score(self, tokens: Tensor) -> Scores:
        """Return log-probabilities of tokens (B, T) int64, each given those before it."""
        return Scores(self.version, _score(self._loaded(), tokens))

    def submit(self, jobs: Sequence[GenerationJob], notify: Notify) -> list[Ticket]:
        """Answer jobs, exactly as the learners do in turn with learning; see `windtunnel.generate.Generator`."""
        if self._generation is None:
            assert self._serving is not None
            # Made at the first job: an engine that only scores needs neither cache nor recordings.
            decoder = hf_decoder(self._loaded(), self._serving.tokens)
            text = NoText(decoder.vocab, self._serving.ends)
            self._generation = BatchedGenerator(decoder, text, slots=self._serving.slots, version=self.version)
        return self._generation.submit(jobs, notify, stream=False, bounded=False)

    @property
    def progress(self) -> int:
        """Return a number that grows while jobs are answered."""
        return 0 if self._generation is None else self._generation.stats.steps + self._generation.stats.prompt_tokens

    def close(self) -> None:
        """Give up whatever is being answered."""
        if self._generation is not None:
            self._generation.close()
            self._generation = None

    @torch.inference_mode()
    def generate(self, prompts: Tensor, new_tokens: int, seed: int) -> Answers:
        """Sample `new_tokens` for each of the prompts (B, P) int64, at temperature 1 from the whole vocabulary."""
        model = self._loaded()
        devices = [self._device] if self._device.startswith("cuda") else []
        # transformers' defaults would sample among the likeliest 50 only, which the learner knows nothing of.
        settings = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new_tokens, min_new_tokens=new_tokens,
            return_dict_in_generate=True, output_logits=True, use_cache=True,
        )  # fmt: skip
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            made = model.generate(  # type: ignore[operator]
                prompts.to(self._device), attention_mask=torch.ones_like(prompts).to(self._device), generation_config=settings
            )
        tokens = made.sequences[:, prompts.size(1) :]
        return Answers(self.version, tokens.cpu(), _of_tokens(torch.stack(made.logits, dim=1), tokens))

    def save(self, file: Path) -> int:
        """Write the model's parameters, by transformers' names, into a safetensors file; gives their version."""
        model = self._loaded()
        save_file({name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}, file)
        return self.version

    def _go_over_to(self, model: PreTrainedModel, version: int) -> None:
        """Have another model's weights from here on; answers under way go on with them, from their next token.

        Who answers keeps its own model, with the recordings of its steps, and gets the weights written into it.
        """
        if self._generation is not None and self._generation.alive:
            # Recorded steps have the addresses of the weights in them: new weights must lie where the old ones do.
            old = self._loaded()
            self._generation.renew(lambda: _overwrite(old, model), version)
        else:
            self.close()
            self._model = model
        self.version = version

    def _loaded(self) -> PreTrainedModel:
        if self._model is None:
            raise StaleWeights("the engine has no weights yet")
        return self._model

    def _adapted(self, of: str, adapters: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Tensor]:
        """Return the weights with adapters merged. Raises BrokenSnapshot."""
        found, scale = dict(self._base), settings["lora_alpha"] / settings["r"]
        # Both matrices are looked for: one without the other would leave a layer as it was, unseen.
        layers = {name.removesuffix(A) for name in adapters if name.endswith(A)}
        for layer in sorted(layers | {name.removesuffix(B) for name in adapters if name.endswith(B)}):
            name = f"{layer.removeprefix(PREFIX)}.weight"
            if name not in found or f"{layer}{A}" not in adapters or f"{layer}{B}" not in adapters:
                raise BrokenSnapshot(f"{of}: {layer} is not an adapter of two matrices beside one of the weights")
            found[name] = merge_adapter(found[name], adapters[f"{layer}{A}"], adapters[f"{layer}{B}"], scale).to(self._dtype)
        return found

    def _build(self, of: str, dtypes: dict[str, str], kind: Any = AutoModelForCausalLM, **source: Any) -> PreTrainedModel:
        """Return a model from what `from_pretrained` takes; `dtypes`: of the tensors there. Raises BrokenSnapshot."""
        try:
            loaded: Any = kind.from_pretrained(
                **source, dtype=self._dtype, local_files_only=True, output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError, KeyError, AttributeError, SafetensorError) as error:
            raise BrokenSnapshot(f"{of}: transformers cannot load it: {error}") from None
        model: PreTrainedModel = loaded[0]
        report: dict[str, Any] = loaded[1]
        for what, key in (("lacks", "missing_keys"), ("has", "unexpected_keys"), ("has another shape of", "mismatched_keys")):
            # Mismatched keys come with their shapes, the others as plain names.
            names = sorted(name if isinstance(name, str) else name[0] for name in report.get(key) or ())
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise BrokenSnapshot(f"{of} {what} {names[0]}{more}, as the engine's model sees it")
        # Buffers such as rotary tables keep a dtype of their own in any model.
        buffers = {name for name, _ in model.named_buffers()}
        wanted = str(self._dtype).removeprefix("torch.")
        for name, dtype in dtypes.items():
            if dtype != wanted and name not in buffers:
                raise BrokenSnapshot(f"{of}: {name} is {dtype}, the engine holds {wanted}")
        model.to(self._device)  # type: ignore[arg-type]
        return model.eval()


def opened(path: Path, version: int) -> WeightSnapshot:
    """Return a version whose files are those that were published. Raises StaleWeights, BrokenSnapshot."""
    snapshot = open_snapshot(path)
    if snapshot.version != version:
        raise StaleWeights(f"{path} holds version {snapshot.version} of the weights, asked for was version {version}")
    problem = snapshot.problem()
    if problem is not None:
        raise BrokenSnapshot(problem)
    return snapshot


def require_canary(of: str, canary: Canary, score: Callable[[Tensor], Tensor]) -> Mismatch:
    """Return how far an engine's log-probabilities of a version's canary are from the learner's. Raises BrokenSnapshot.

    Args:
        of: what is refused.
        canary: of the version.
        score: gives the engine's.
    """
    found, alike = canary.compare(score(canary.tokens))
    if not alike:
        raise DifferentScores(
            f"{of}: the engine scores the canary otherwise than the learner: log-probabilities differ by "
            f"{found.mean:.2g} on average and {found.largest:.2g} at most; {canary.mean:.2g} and {canary.largest:.2g} are allowed"
        )
    return found


def _overwrite(old: PreTrainedModel, new: PreTrainedModel) -> None:
    """Write a model's weights where another's lie, who are used."""
    weights = dict(new.named_parameters()) | dict(new.named_buffers())
    for name, tensor in (*old.named_parameters(), *old.named_buffers()):
        tensor.data.copy_(weights[name])


@torch.inference_mode()
def _score(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    tokens = tokens.to(model.device)
    return _of_tokens(model(input_ids=tokens[:, :-1], use_cache=False).logits, tokens[:, 1:])


def _of_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return log-probabilities (B, T) fp32 on the host of tokens (B, T) by logits (B, T, vocab)."""
    chosen: Tensor = torch.log_softmax(logits.float(), -1).gather(-1, tokens[..., None])[..., 0]
    return chosen.cpu()
