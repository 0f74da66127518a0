"""What tokens are as bytes and as names, for each way in which tokenizers write text."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_hf import tiny_llama
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from windtunnel.data import Characters
from windtunnel.data.bpe import train_bpe
from windtunnel.generate import GenerationJob, OwnText, TextCodec, TextStream, load_source
from windtunnel.generate.folder_text import FolderText

TEXT = "h\u00e9llo \U0001f600 \u4f60\u597d"


def saved(inner: Tokenizer, folder: Path) -> FolderText:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return FolderText(folder)


def byte_level(folder: Path) -> FolderText:
    return FolderText(tiny_llama(folder))


def byte_fallback(folder: Path) -> FolderText:
    """Llama 2's way: a space before the text, bytes for what has no token, and the first space taken away again."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *"\u2581h\u00e9llo", "\u2581h", "ll"]
    merges = [("\u2581", "h"), ("l", "l")]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(parts)
    inner.add_special_tokens(["<s>", "</s>", "<unk>"])
    return saved(inner, folder)


def words(folder: Path) -> FolderText:
    return of_words(folder, models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, **{w: i + 3 for i, w in enumerate(TEXT.split())}}))


def word_pieces(folder: Path) -> FolderText:
    parts = ["h\u00e9", "##llo", *TEXT.split()[1:]]
    made = models.WordPiece({"<unk>": 0, "<s>": 1, "</s>": 2, **{w: i + 3 for i, w in enumerate(parts)}}, unk_token="<unk>")
    return of_words(folder, made, decoders.WordPiece())


def of_words(folder: Path, model: models.Model, decoder: decoders.Decoder | None = None) -> FolderText:
    inner = Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        inner.decoder = decoder
    inner.add_special_tokens(["<s>", "</s>", "<unk>"])
    return saved(inner, folder)


def own_characters(folder: Path) -> OwnText:
    return OwnText(Characters("".join(sorted(set(TEXT)))))


def own_bpe(folder: Path) -> OwnText:
    return OwnText(train_bpe([TEXT * 3], 264))


MAKERS = [byte_level, byte_fallback, words, word_pieces, own_characters, own_bpe]


@pytest.mark.parametrize("make", MAKERS)
def test_bytes_of_all_tokens_are_those_of_the_text(make: Callable[[Path], TextCodec], tmp_path: Path) -> None:
    codec = make(tmp_path)
    ids = codec.encode(TEXT)
    # Behind other text, as answers are: the tokenizer takes nothing from the first token then.
    stream = TextStream(codec, before=ids)
    pieces = [stream.push(token, -1.0)[0] for token in ids]
    pieces.append(stream.finish("length"))
    text, infos = "".join(p.text for p in pieces), [t for p in pieces for t in p.tokens]
    assert text.strip() == TEXT
    assert [t.token for t in infos] == ids
    assert b"".join(codec.piece(t.token) or b"" for t in infos) == text.encode()


@pytest.mark.parametrize("make", [byte_level, byte_fallback, own_bpe])
def test_a_part_of_a_character_is_named_by_its_bytes(make: Callable[[Path], TextCodec], tmp_path: Path) -> None:
    codec = make(tmp_path)
    ids = codec.encode("\u754c")
    named = [codec.name(token) for token in ids if codec.piece(token)]
    assert [name for name in named if name.strip()] == ["bytes:\\xe7", "bytes:\\x95", "bytes:\\x8c"]


def test_special_tokens_are_named_and_have_no_bytes(tmp_path: Path) -> None:
    codec = byte_level(tmp_path)
    (token,) = codec.encode("<|im_start|>")
    assert (codec.name(token), codec.piece(token)) == ("<|im_start|>", None)
    assert (codec.name(10**6), codec.piece(10**6)) == ("", b"")  # a row of a padded table


def test_text_goes_on_behind_bytes_that_are_no_character(tmp_path: Path) -> None:
    codec = byte_fallback(tmp_path)
    odd = ["<0x3D>", "<0x80>", "<0x80>", "ll", "<0x80>", "\u2581h", "<0xE4>"]
    stream = TextStream(codec)
    pieces = [stream.push(codec.inner.convert_tokens_to_ids(token), -1.0)[0] for token in odd]
    pieces.append(stream.finish("length"))
    assert "".join(p.text for p in pieces) == "=\ufffd\ufffdll\ufffd h\ufffd"
    assert [codec.inner.convert_ids_to_tokens(t.token) for p in pieces for t in p.tokens] == odd


@pytest.mark.parametrize("make", [byte_fallback, words, word_pieces])
@pytest.mark.parametrize("end", ["", "<s>"])
def test_an_answer_keeps_the_space_between_it_and_its_prompt(
    make: Callable[[Path], FolderText], end: str, tmp_path: Path
) -> None:
    codec = make(tmp_path)
    prompt, answer = codec.encode(TEXT + end), codec.encode(TEXT.split()[0])
    stream = TextStream(codec, before=prompt)
    text = "".join(stream.push(token)[0].text for token in answer) + stream.finish("length").text
    assert text == " " + TEXT.split()[0]
    alone = TextStream(codec, before=[1])  # nothing that is text comes before
    assert "".join(alone.push(token)[0].text for token in answer) + alone.finish("length").text == TEXT.split()[0]


def test_an_answer_behind_a_part_of_a_character_is_read(tmp_path: Path) -> None:
    codec = byte_level(tmp_path)
    *prompt, last = codec.encode("\U0001f600")
    stream = TextStream(codec, before=prompt)
    ids = [last, *codec.encode("one")]
    assert ("".join(stream.push(token)[0].text for token in ids) + stream.finish("length").text).endswith("one")


def test_prompt_and_answer_together_are_what_the_tokens_say(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    codec = byte_fallback(tmp_path)
    engine = load_source(tmp_path, device="cpu").generator
    try:
        prompt = codec.encode("h\u00e9llo")
        jobs = [GenerationJob(tuple(prompt), 4, temperature=1.9, seed=seed) for seed in range(150)]
        found = engine.generate(jobs)
    finally:
        engine.close()
    whole = [(codec.decode([*prompt, *done.tokens]), "h\u00e9llo" + done.text) for done in found]
    assert all(expected == text for expected, text in whole if "\ufffd" not in expected)
    assert any(done.text.startswith(" ") for done in found)
