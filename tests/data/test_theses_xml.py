"""Theses in XML: every way in which they are written, and files that are broken or hostile."""

from __future__ import annotations

import datetime
import gzip
import resource
from pathlib import Path
from typing import Any

import pytest

from windtunnel.data import theses_xml
from windtunnel.data.corpus import listed_files
from windtunnel.data.theses import Rejected, check_thesis
from windtunnel.data.theses_read import thesis_parts, thesis_records
from windtunnel.data.theses_xml import Undividable
from windtunnel.recipe import UserError

WHY = "Earnings grew faster than the price for three quarters in a row."
BODY = f"<reasoning>{WHY}</reasoning><action>BUY</action><support>Margin of 31 %.</support>"
THESIS = f"<thesis><as-of-date>2024-03-15</as-of-date>{BODY}<rsi>61.2</rsi></thesis>"
ROOT = '<stock-theses ticker="ABC" generated-by="someone" version="1.0">'


def read(path: Path, content: str | bytes) -> list[tuple[str, dict[str, Any]]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(thesis_records(listed_files([str(path)]), lambda share: None))


def only(tmp_path: Path, thesis: str, root: str = ROOT) -> dict[str, Any]:
    ((_, record),) = read(tmp_path / "a.xml", f"{root}\n{thesis}\n</stock-theses>")
    return record


def refused(tmp_path: Path, content: str | bytes, said: str, name: str = "a.xml") -> UserError:
    with pytest.raises(UserError, match=said) as caught:
        read(tmp_path / name, content)
    assert name in caught.value.message
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    "thesis",
    [
        THESIS,
        THESIS.replace("as-of-date", "as_of_date"),
        f'<thesis as-of-date="2024-03-15">{BODY}<rsi>61.2</rsi></thesis>',
        f"<thesis as_of_date='2024-03-15'>{BODY}<indicators><rsi>61.2</rsi></indicators></thesis>",
        f'<thesis as-of-date="2024-03-15">{BODY}<indicator name="rsi" value="61.2"/></thesis>',
        f'<thesis as-of-date="2024-03-15" action="BUY">{BODY}<indicators><item key="rsi">61.2</item></indicators></thesis>',
        f'<t:thesis xmlns:t="x"><t:as-of-date>\n 2024-03-15\n </t:as-of-date>{BODY}<t:RSI>61.2</t:RSI></t:thesis>',
        THESIS.replace(WHY, f"<![CDATA[{WHY}]]>"),
        THESIS.replace(WHY, WHY.replace("faster", "<b>faster</b>")),
        THESIS.replace("<thesis>", "<thesis><!-- a note --><?php echo 1 ?><ticker>ABC</ticker>"),
    ],
)
def test_every_way_of_writing_a_thesis_is_read_alike(tmp_path: Path, thesis: str) -> None:
    made = check_thesis(only(tmp_path, thesis), "a:2", datetime.date(2026, 1, 1), "Decide.")
    assert (made.ticker, made.as_of, made.action) == ("ABC", datetime.date(2024, 3, 15), "BUY")
    assert (made.reasoning, made.support, made.indicators) == (WHY, "Margin of 31 %.", {"rsi": "61.2"})


def test_a_record_is_named_by_its_line_and_its_own_ticker_comes_first(tmp_path: Path) -> None:
    other = THESIS.replace("<thesis>", '<thesis ticker="XYZ">')
    found = read(tmp_path / "a.xml", f"{ROOT}\n{THESIS}\n\n{other}</stock-theses>")
    assert [(source.rpartition(":")[2], record["ticker"]) for source, record in found] == [("2", "ABC"), ("4", "XYZ")]


def test_indicators_keep_their_names_apart(tmp_path: Path) -> None:
    record = only(tmp_path, f"<thesis>{BODY}<rsi>1</rsi><rsi>2</rsi><rsi>3</rsi><risk><beta>1.1</beta></risk><empty/></thesis>")
    assert record["indicators"] == {"rsi": "1", "rsi#2": "2", "rsi#3": "3", "risk.beta": "1.1"}


@pytest.mark.parametrize("name", ["ticker", "as_of_date", "reasoning", "action", "support"])
def test_what_is_given_twice_and_differs_is_rejected(tmp_path: Path, name: str) -> None:
    tag = name.replace("_", "-")
    twice = f"<{tag}>other</{tag}>"
    record = only(tmp_path, THESIS.replace("<thesis>", f"<thesis><ticker>ABC</ticker>{twice}"))
    with pytest.raises(Rejected, match=f"{name} given twice"):
        check_thesis(record, "a:2", datetime.date(2026, 1, 1), "Decide.")


def test_paragraphs_of_a_text_stay_apart(tmp_path: Path) -> None:
    record = only(tmp_path, THESIS.replace(WHY, "<p>One.</p><p>Two &amp; <i>three</i>s.</p>"))
    assert " ".join(record["reasoning"].split()) == "One. Two & threes."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252", "us-ascii"])
def test_encodings_that_are_named_are_read(tmp_path: Path, encoding: str) -> None:
    text = THESIS.replace("Margin", "Margin é" if encoding != "us-ascii" else "Margin e")
    content = f'<?xml version="1.0" encoding="{encoding}"?>{ROOT}{text}</stock-theses>'.encode(encoding)
    ((_, record),) = read(tmp_path / "a.xml", content)
    assert record["support"][7] in "ée"
    ((_, record),) = read(tmp_path / "b.xml.gz", gzip.compress(content))
    assert record["support"][7] in "ée"


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol">'
    + "".join(f'<!ENTITY lol{i} "{f"&lol{i - 1 if i > 1 else str()};" * 10}">' for i in range(1, 10))
    + f"]>{ROOT}{THESIS.replace(WHY, '&lol9;')}</stock-theses>"
)


@pytest.mark.parametrize(
    "declared",
    [
        LAUGHS,
        f'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>{ROOT}{THESIS.replace(WHY, "&a;")}</stock-theses>',
        f'<!DOCTYPE x [<!ENTITY % a SYSTEM "http://127.0.0.1:9/x.dtd"> %a;]>{ROOT}{THESIS}</stock-theses>',
        f'<!DOCTYPE stock-theses SYSTEM "http://127.0.0.1:9/x.dtd">{ROOT}{THESIS}</stock-theses>',
        f'<!DOCTYPE x [<!ENTITY a "{"a" * 100_000}">]>{ROOT}{THESIS.replace(WHY, "&a;" * 100_000)}</stock-theses>',
    ],
    ids=["billion-laughs", "xxe", "parameter-entity", "external-dtd", "quadratic"],
)
def test_entities_are_refused_before_they_are_looked_at(tmp_path: Path, declared: str) -> None:
    error = refused(tmp_path, declared, "a DOCTYPE can define entities")
    assert "remove the <!DOCTYPE" in str(error.fix)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{ROOT}{THESIS}", "a.xml:1: not well-formed XML, .*no element found"),
        (f"{ROOT}\n{THESIS[:-40]}</stock-theses>", "a.xml:2: not well-formed XML, .*mismatched tag"),
        (f"{ROOT}\n\n<thesis>&nbsp;</thesis></stock-theses>", "a.xml:3: .*undefined entity"),
        (f"{ROOT}<thesis>\x01</thesis></stock-theses>", "invalid token"),
        (f"{ROOT}<thesis>é</thesis></stock-theses>".encode("latin-1"), "not well-formed XML.*invalid token"),
        (f'<?xml version="1.0" encoding="klingon"?>{ROOT}</stock-theses>', "its encoding cannot be read"),
        (f'<?xml version="1.0" encoding="shift_jis"?>{ROOT}</stock-theses>', "its encoding cannot be read"),
        (f"{ROOT}</stock-theses>{ROOT}</stock-theses>", "junk after document element"),
        ("<html><body>404</body></html>", "the document is <html>, expected <stock-theses>"),
        (f"{ROOT}{'<a>' * 100}", "more than 64 deep"),
        (f"{ROOT}<thesis>{'<a>' * 100}", "more than 64 deep"),
        (f"{ROOT}<thesis><reasoning>{'<a>' * 100}", "more than 64 deep"),
        ("nothing", "not well-formed XML"),
    ],
)
def test_what_is_broken_is_refused_with_its_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    refused(tmp_path, content, said)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(f"{ROOT}{THESIS * 500}</stock-theses>".encode())
    refused(tmp_path, whole[: len(whole) // 2], "is damaged gzip", "a.xml.gz")


@pytest.mark.parametrize(
    ("opened", "filler", "said"),
    [
        (f"{ROOT}<!--", "x" * 1000, "one tag or comment is longer than 16 MiB"),
        (f'{ROOT}<thesis as-of-date="', "x" * 1000, "one tag or comment is longer than 16 MiB"),
    ],
)
def test_a_token_without_an_end_is_refused(tmp_path: Path, opened: str, filler: str, said: str) -> None:
    with gzip.open(tmp_path / "a.xml.gz", "wt") as file:
        file.write(opened)
        for _ in range(40_000):
            file.write(filler)
    with pytest.raises(UserError, match=said):
        list(thesis_records(listed_files([str(tmp_path / "a.xml.gz")]), lambda share: None))


def test_memory_does_not_grow_with_the_text_or_the_file(tmp_path: Path) -> None:
    """A reasoning of 200 million characters, then 60,000 theses."""
    with gzip.open(tmp_path / "a.xml.gz", "wt", compresslevel=1) as file:
        file.write(f"{ROOT}<thesis><as-of-date>2024-03-15</as-of-date><reasoning>")
        for _ in range(200):
            file.write("x" * 1_000_000)
        file.write("</reasoning></thesis>")
        for _ in range(600):
            file.write(THESIS * 100)
        file.write("</stock-theses>")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = thesis_records(listed_files([str(tmp_path / "a.xml.gz")]), lambda share: None)
    _, first = next(found)
    assert len(first["reasoning"]) == 2_000_000
    with pytest.raises(Rejected, match="reasoning longer than 10000 characters: 2,000,000 characters"):
        check_thesis(first | {"action": "BUY"}, "a:1", datetime.date(2026, 1, 1), "Decide.")
    assert sum(1 for _ in found) == 60_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB


# In parts.


def in_parts(path: Path) -> list[tuple[str, dict[str, Any]]]:
    parts = thesis_parts(listed_files([str(path)]), lambda share: None, divide=True)
    return [found for part in parts for found in part.records()]


VARIANTS = [
    THESIS,
    THESIS.replace("<thesis>", '<thesis ticker="XYZ" action="BUY">\n\n'),
    THESIS.replace("<rsi>61.2</rsi>", "<indicators>\n<rsi>61.2</rsi><risk>no<beta> 1 </beta><beta>2</beta></risk></indicators>"),
    THESIS.replace("<rsi>61.2</rsi>", '<indicator name="rsi" value="61.2"/><item key="a">1</item><indicator/><empty> </empty>'),
    THESIS.replace(WHY, f"{WHY} &lt;thesis&gt; &amp; é \u4e2d"),
    THESIS.replace("<rsi>61.2</rsi>", "<reasoning>other</reasoning><RSI>1</RSI><rsi>2</rsi>"),
]
MARKED = [
    THESIS.replace(WHY, f"<![CDATA[{WHY} <thesis >]]>"),
    THESIS.replace(WHY, WHY.replace("faster", "<b>faster</b>")),
    THESIS.replace("<rsi>", "<!-- <thesis> --><rsi>"),
    THESIS.replace("<rsi>", "<?php <thesis> ?><rsi>").replace("\n", "\r\n"),
    THESIS.replace("<reasoning>", "<reasoning><p>One.</p>\r\n"),
]


OTHER_ROOT = '<?xml version="1.0" encoding="utf-8"?>\n<!-- a note -->\n<t:theses xmlns:t="x" ticker="ABC">'


@pytest.mark.parametrize("root", [ROOT, OTHER_ROOT])
@pytest.mark.parametrize("theses", [VARIANTS, [*VARIANTS, *MARKED]], ids=["plain", "marked"])
def test_a_file_read_in_parts_has_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theses: list[str], root: str
) -> None:
    end = "</t:theses>" if "t:" in root else "</stock-theses>"
    body = "".join(theses[i * i % len(theses)] + "\n" * (i % 3) for i in range(300))
    content = f"{root}\n{body}{end}\n<!-- end -->\n"
    path = tmp_path / "a.xml"
    whole = read(path, content)
    assert len(whole) == 300
    assert in_parts(path) == whole
    monkeypatch.setattr(theses_xml, "PART", 2000)
    monkeypatch.setattr(theses_xml, "BLOCK", 500)
    try:
        parts = in_parts(path)
    except Undividable:  # one of the parts ends in a comment or the like
        assert theses is not VARIANTS
        return
    assert parts == whole


@pytest.mark.parametrize(
    "content",
    [
        f"{ROOT}{THESIS}",
        f"{ROOT}{THESIS}{THESIS[:-40]}{THESIS}</stock-theses>",
        f"{ROOT}{THESIS}&nbsp;{THESIS}</stock-theses>",
        f"{ROOT}{THESIS}<!DOCTYPE a>{THESIS}</stock-theses>",
        f"<!DOCTYPE a>{ROOT}{THESIS}</stock-theses>",
        f"{ROOT}{THESIS}</stock-theses>{ROOT}{THESIS}</stock-theses>",
        f"{ROOT}<!-- {THESIS} --></stock-theses>",
        f"{ROOT}<group>{THESIS}</group>{THESIS}</stock-theses>",
        f"{ROOT}{THESIS}<thesis><thesis>{'<a>' * 100}",
        f"{ROOT}</stock-theses>",
        "<html><thesis></thesis></html>",
        f'<?xml version="1.0" encoding="iso-8859-1"?>{ROOT}{THESIS}</stock-theses>',
        f'<?xml version="1.0" encoding="utf-16"?>{ROOT}{THESIS}</stock-theses>'.encode("utf-16"),
        f"{ROOT}{THESIS}é</stock-theses>".encode("latin-1"),
    ],
)
def test_what_cannot_be_read_in_parts_is_left_to_be_read_as_a_whole(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Undividable):
        in_parts(path)
