"""Chat templates: conversations as text, as token ids, and which of them are learned.

A template is Jinja, rendered by transformers. The spans that the assistant wrote are told by the template's own
{% generation %} blocks where it has them (as TRL asks for), less what a prompt has already, else by rendering prefixes:
a turn begins where the conversation before it ends when an answer is asked for, and it ends where the conversation with
it ends. Both must be beginnings of the whole text, or the turn cannot be told apart and the conversation is refused.

Text is encoded span by span, so that what stands before an answer has the very ids that the model sees when it
is asked: a token that began in the question and ended in the answer would never occur in use.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from windtunnel.recipe import Conversational, PromptCorpus, Recipe, UserError

from .bpe import BOS_TEXT, CHATML_END, CHATML_START
from .conversations import Conversation, Message, learned
from .corpus import corpora_of
from .documents import Array
from .subwords import Folder, Subwords
from .time_limit import within
from .tokenizer import Tokenizer
from .turns import CALL_FORMS, PROBE, PROBE_TOOLS, CallForm, Markers, in_form, parted, thinks, unsaid

Span = tuple[int, int]
Run = tuple[bytes, bool]  # ids, a uint32 each, and whether they are learned

_CHATML = (
    "{{ start_of_text }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Stanford Alpaca's prompts (github.com/tatsu-lab/stanford_alpaca), an instruction and its answer after the other.
_ALPACA = (
    "{{ start_of_text }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '### Response:\n' }}"
    "{% generation %}{{ message['content'] + end_of_answer }}{% endgeneration %}{{ '\n\n' }}"
    "{% elif message['role'] == 'user' %}"
    "{% if loop.first %}{{ 'Below is an instruction that describes a task"
    "' + (', paired with an input that provides further context' if message['input'] else '') + '. "
    "Write a response that appropriately completes the request.\n\n' }}{% endif %}"
    "{{ '### Instruction:\n' + (message['instruction'] or message['content']) + '\n\n' }}"
    "{% if message['input'] %}{{ '### Input:\n' + message['input'] + '\n\n' }}{% endif %}"
    "{% else %}{{ raise_exception('the Alpaca template has no role ' + message['role']) }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
_PLAIN = (
    "{{ start_of_text }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + end_of_answer }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)
_OWN = {"chatml": _CHATML, "alpaca": _ALPACA, "plain": _PLAIN}
# One at a time: see `_render_as_it_is`.
_RENDERING = threading.Lock()
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Encoded:
    """A conversation as tokens: ids (n,) uint32, and learned (n,) bool."""

    ids: Array
    learned: Array


@dataclass
class ChatTemplate:
    """A template with the tokenizer it writes for.

    Attributes:
        name: model, chatml, alpaca or plain. source: Jinja. special: what bos_token and the like stand for.
    """

    name: str
    source: str
    tokenizer: Tokenizer
    special: dict[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None, *, ask: bool = False) -> str:
        """Return the conversation as text, with the beginning of an answer where `ask`. Raises whatever the template raises."""
        return self._render(messages, tools, ask=ask)[0]

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, *, ask: bool = False, mark: bool = False
    ) -> tuple[str, list[Span]]:
        # The most frequent by far, and much faster without Jinja.
        if self.name == "chatml":
            return _write_chatml(messages, self.special["start_of_text"], ask)
        if any(message.get("tool_calls") for message in messages):
            messages = in_form(messages, self._call_form)
        return self._render_as_it_is(messages, tools, ask=ask, mark=mark)

    def _render_as_it_is(
        self, messages: Sequence[Message], tools: list[Any] | None, *, ask: bool = False, mark: bool = False
    ) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        special: Any = self.special
        # transformers keeps one compiled template for all threads, which notes its spans in itself.
        with _RENDERING:
            made: Any = within(
                lambda: render_jinja_template(
                    conversations=[list(messages)], tools=tools, chat_template=self.source, add_generation_prompt=ask,
                    return_assistant_tokens_mask=mark, **special,
                ),
            )  # fmt: skip
        texts, spans = made
        return texts[0], [(int(a), int(b)) for a, b in spans[0]] if mark else []

    @cached_property
    def _call_form(self) -> CallForm:
        """The first form of calls that the template writes, of a conversation that has nothing else in it."""
        for form in CALL_FORMS:
            try:
                text, _ = self._render_as_it_is(in_form(PROBE, form), PROBE_TOOLS)
            except Exception:  # Jinja's, or what the template itself raises
                continue
            if "12321" in text:  # the probe's argument; a template may drop calls of a form that it does not know
                return form
        return CALL_FORMS[0]

    @property
    def described(self) -> str:
        """Return whose template it is, for a report."""
        return "the tokenizer's own" if self.name == "model" else self.name

    @property
    def alone(self) -> str:
        """Return the Jinja source without variables of ours: BOS and the end of an answer stand in it as text."""
        if self.name == "model":
            return self.source
        special = dict(self.special)
        if not isinstance(self.tokenizer, Folder):  # `_runs` puts it before every conversation
            special["start_of_text"] = BOS_TEXT
        used = {name: text for name, text in special.items() if re.search(rf"\b{name}\b", self.source)}
        return (
            "".join(f"{{% set {name} = {json.dumps(used[name], ensure_ascii=False)} %}}" for name in sorted(used)) + self.source
        )

    @cached_property
    def marks(self) -> bool:
        """Return whether the template itself marks what the assistant writes."""
        return _GENERATION.search(self.source) is not None

    def spans(self, conversation: Conversation, loss: str) -> tuple[str, list[Span]]:
        """Return the text and the spans of it that are learned, in order and apart.

        Raises:
            UserError: the template refuses the conversation, or does not keep earlier turns as they were.
        """
        from jinja2 import TemplateSyntaxError

        try:
            return self._spans(conversation, loss)
        except UserError:
            raise
        except TemplateSyntaxError as error:
            raise UserError(
                f"data.corpus.template: the chat template ({self.name}) is no Jinja: line {error.lineno}: {error.message}",
                "copy it from the model's own tokenizer_config.json or chat_template.jinja, or --set data.corpus.template=chatml",
            ) from None
        except Exception as error:  # Jinja's, or what the template itself raises
            what = f"{conversation.where}: the chat template ({self.name}) refuses it: {error}"
            raise UserError(what, "mend the record, or choose another data.corpus.template") from None

    def _spans(self, conversation: Conversation, loss: str) -> tuple[str, list[Span]]:
        messages, tools = conversation.messages, conversation.tools
        self._require_calls(conversation)
        turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        wanted = [i for i in turns if learned(messages[i], i, turns[-1], loss)]
        text, marked = self._render(messages, tools, mark=self.marks)
        asked = [i for i, m in enumerate(messages) if m["role"] == "user"]
        if loss == "all" and len(wanted) == len(turns):
            self._require_said(conversation, [*asked, *turns], [text] * (len(asked) + len(turns)))
            return text, [(0, len(text))]
        if len(marked) == len(turns):
            spans = dict(zip(turns, marked, strict=True))
            found = [self._marked_turn(conversation, i, text, spans[i]) for i in wanted]
        else:
            found = [self._turn(conversation, i, text) for i in wanted]
        learned_spans = [(i, span) for i, span in zip(wanted, found, strict=True) if span[0] < span[1]]
        texts = [*[text] * len(asked), *(text[a:b] for _, (a, b) in learned_spans)]
        self._require_said(conversation, [*asked, *(i for i, _ in learned_spans)], texts)
        return text, [span for _, span in learned_spans]

    def _require_calls(self, conversation: Conversation) -> None:
        """Refuse calls of tools that the template leaves out: the turn would be learned without them. Raises UserError."""
        calling = next((i for i, message in enumerate(conversation.messages, 1) if message.get("tool_calls")), None)
        if calling is not None and "tool_calls" not in self.source:
            raise UserError(
                f"{conversation.where}: turn {calling} calls tools, and the chat template ({self.name}) writes no tool_calls",
                "a model whose own template does (--set data.corpus.template=model), or write the calls into the content",
            )

    def _require_said(self, conversation: Conversation, indices: Sequence[int], texts: Sequence[str]) -> None:
        """Refuse a turn of which the template leaves something out: it would be learned without it. Raises UserError."""
        for index, text in zip(indices, texts, strict=True):
            left = unsaid(conversation.messages[index], text)
            if left is not None:
                raise UserError(
                    f"{conversation.where}: the chat template ({self.name}) leaves out what turn {index + 1} says: {left}",
                    "take it out of the records, write it into the content, or choose another data.corpus.template",
                )

    def _marked_turn(self, conversation: Conversation, index: int, text: str, span: Span) -> Span:
        """Return the span of a turn that the template marks, without the turn's beginning where a prompt has that already."""
        messages, (begin, end) = conversation.messages, span
        if not text.startswith(messages[index]["content"] or "\0", begin):
            before = self.render(messages[:index], conversation.tools, ask=True)
            begin = len(before) if text.startswith(before) and begin < len(before) < end else begin
        return begin, self._markers.end(text, begin, end)

    def _turn(self, conversation: Conversation, index: int, text: str) -> Span:
        """Return the span of one turn, by rendering the conversation up to it and with it."""
        messages, tools = conversation.messages, conversation.tools
        before = self.render(messages[:index], tools, ask=True)
        upto = text if index == len(messages) - 1 else self.render(messages[: index + 1], tools)
        end = self._end(messages[: index + 1], tools, text, upto, len(before))
        if text.startswith(before) and end > len(before):
            return len(before), self._markers.end(text, len(before), end)
        there, here = parted(text, upto if text.startswith(before) else before)
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        fix = "another data.corpus.template" if index == last else "--set data.corpus.loss=last, or another data.corpus.template"
        if "think" in here.lower() and not thinks(messages[index]):
            fix = f"give the turn's thoughts (reasoning_content), {fix}"
        raise UserError(
            f"{conversation.where}: the chat template ({self.name}) writes turn {index + 1} otherwise within the whole "
            f"conversation ({there}) than when it is asked for it ({here}), so that what is learned would not be what is asked",
            fix,
        )

    def _end(self, messages: Sequence[Message], tools: list[Any] | None, text: str, upto: str, begin: int) -> int:
        """Return where the last of these turns ends in the whole text; 0 where it is not written there as it is by itself."""
        if not text.startswith(upto):
            return self._markers.without_end_of_text(upto, text, begin)
        if upto is text and self._markers.twice(text):
            try:
                further = self.render(messages, tools, ask=True)
            except Exception:  # a template that refuses to be asked once more
                return len(upto)
            if not further.startswith(text):
                return self._markers.without_end_of_text(text, further, begin) or len(upto)
        return len(upto)

    @cached_property
    def _markers(self) -> Markers:
        return Markers(self.tokenizer.special_texts() if isinstance(self.tokenizer, Subwords) else [])

    def encode(self, conversations: Sequence[Conversation], loss: str) -> list[Encoded]:
        """Return the tokens of conversations, and which are learned. Raises UserError."""
        return [_joined(sample) for sample in self.encode_runs(conversations, loss)]

    def encode_prompts(self, prompts: Sequence[Sequence[Message]]) -> list[Array]:
        """Return the ids of conversations that ask for an answer, as a generator is given them."""
        return [_joined(sample).ids for sample in self._runs([(self.render(p, ask=True), []) for p in prompts])]

    def encode_runs(self, conversations: Sequence[Conversation], loss: str) -> list[list[Run]]:
        """Return the same as `encode`, each conversation as runs of tokens that are learned, or not. Raises UserError."""
        rendered = [self.spans(conversation, loss) for conversation in conversations]
        return self._runs(rendered)

    def _runs(self, rendered: list[tuple[str, list[Span]]]) -> list[list[Run]]:
        if isinstance(self.tokenizer, Subwords):
            # Encoding in parts would put a space before each.
            if self.tokenizer.prefixes_space:
                return self._runs_of_whole(rendered)
            pieces = [_pieces(text, spans) for text, spans in rendered]
            encoded = iter(self.tokenizer.marked_ids([piece for cut in pieces for piece, _ in cut]))
            ids = [[(next(encoded), flag) for _, flag in cut] for cut in pieces]
        else:
            ids = [[(_stored(self.tokenizer.encode(p)), flag) for p, flag in _pieces(*both)] for both in rendered]
        if not isinstance(self.tokenizer, Folder):  # made here: BOS stands before every document, and no template writes it
            begin = _stored([self.tokenizer.bos])
            ids = [[(begin, False), *sample] for sample in ids]
        return ids

    def _runs_of_whole(self, rendered: list[tuple[str, list[Span]]]) -> list[list[Run]]:
        """Encode whole, for tokenizers that put a space before every text; learned is what lies within a span."""
        assert isinstance(self.tokenizer, Subwords)
        made = []
        for (_, spans), encoding in zip(rendered, self.tokenizer.encode_marked([text for text, _ in rendered]), strict=True):
            inside = [any(a <= start and end <= b and end > a for a, b in spans) for start, end in encoding.offsets]
            runs = itertools.groupby(zip(encoding.ids, inside, strict=True), key=lambda pair: pair[1])
            made.append([(_stored([token for token, _ in run]), flag) for flag, run in runs])
        return made


def _write_chatml(messages: Sequence[Message], start: str, ask: bool) -> tuple[str, list[Span]]:
    """Return what ChatML's template says, without Jinja: the text, and what the assistant wrote of it."""
    text, spans = start, []
    for message in messages:
        text += f"{CHATML_START}{message['role']}\n"
        begin = len(text)
        text += f"{message['content']}{CHATML_END}"
        if message["role"] == "assistant":
            spans.append((begin, len(text)))
        text += "\n"
    return (f"{text}{CHATML_START}assistant\n" if ask else text), spans


def _stored(ids: Any) -> bytes:
    return np.asarray(ids, dtype=np.uint32).tobytes()


def _joined(sample: list[Run]) -> Encoded:
    """Return the ids of the pieces one behind the other, each with its piece's flag."""
    parts = [np.frombuffer(part, dtype=np.uint32) for part, _ in sample]
    flags = np.array([flag for _, flag in sample], dtype=bool)
    return Encoded(np.concatenate([np.empty(0, dtype=np.uint32), *parts]), np.repeat(flags, [len(part) for part in parts]))


def _pieces(text: str, spans: list[Span]) -> list[tuple[str, bool]]:
    """Return the text cut at the spans: (piece, whether it is learned)."""
    cut, at = [], 0
    for start, end in spans:
        cut += [(text[at:start], False), (text[start:end], True)]
        at = end
    cut.append((text[at:], False))
    return [(piece, flag) for piece, flag in cut if piece]


def choose_template(wanted: str, tokenizer: Tokenizer, *, fallback: str) -> ChatTemplate:
    """Return the template that data.corpus.template names.

    Args:
        wanted: auto, model, chat, chatml, alpaca or plain.
        tokenizer: must have the markers.
        fallback: what 'auto' is where the tokenizer has no template of its own.

    Raises:
        UserError: the tokenizer has no chat template, or lacks the markers of the one named.
    """
    own = tokenizer.template if isinstance(tokenizer, Folder) else None
    special = dict(tokenizer.special) if isinstance(tokenizer, Folder) else {}
    if wanted == "model" and own is None:
        raise UserError(
            "data.corpus.template: the tokenizer has no chat template of its own",
            "--set data.corpus.template=chatml, alpaca or plain",
        )
    if own is not None and wanted in ("auto", "model", "chat"):
        return ChatTemplate("model", own, tokenizer, special)
    name = fallback if wanted == "auto" else "chatml" if wanted == "chat" else wanted
    if not isinstance(tokenizer, Subwords):
        if name != "plain":
            raise UserError(
                f"data.corpus.template: {name} needs markers that a tokenizer of kind {tokenizer.kind} does not have",
                "--set data.tokenizer.kind=folder, or bpe",
            )
        return ChatTemplate(name, _PLAIN, tokenizer, {"start_of_text": "", "end_of_answer": ""})
    missing = [marker for marker in (CHATML_START, CHATML_END) if tokenizer.token(marker) is None]
    if name == "chatml" and missing:
        raise UserError(
            f"data.corpus.template: chatml's {missing[0]} is no token of this tokenizer", "--set data.corpus.template=alpaca"
        )
    special |= {"start_of_text": tokenizer.text_start, "end_of_answer": tokenizer.text_of(tokenizer.eos)}
    return ChatTemplate(name, _OWN[name], tokenizer, special)


def template_of(recipe: Recipe, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the template that a recipe's conversations are written by; of other text the tokenizer's own, if it has one."""
    for corpus in corpora_of(recipe):
        if isinstance(corpus, Conversational | PromptCorpus):
            fallback = "chatml" if isinstance(corpus, Conversational) else "plain"
            return choose_template(corpus.template, tokenizer, fallback=fallback)
    own = isinstance(tokenizer, Folder) and tokenizer.template is not None
    return choose_template("model", tokenizer, fallback="") if own else None


def end_of_answer(tokenizer: Tokenizer, template: ChatTemplate | None) -> int:
    """Return the token that ends what the model writes: the last one that is learned of an answer, else the tokenizer's own."""
    if template is None:
        return tokenizer.eos
    talk = Conversation("", [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    try:
        (encoded,) = template.encode([talk], "answers")
    except UserError:  # it asks for more than one question and one answer
        return tokenizer.eos
    last = int(encoded.ids[encoded.learned][-1])
    return last if tokenizer.pieces[last] == b"" else tokenizer.eos
