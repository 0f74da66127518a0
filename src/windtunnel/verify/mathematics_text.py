"""Notation that the parser of mathematics does not know, put into notation that it does, before anything is parsed."""

from __future__ import annotations

import re

FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
SIGNS = str.maketrans(
    {sign: f"\\frac{{{a}}}{{{b}}}" for sign, (a, b) in FRACTIONS.items()}
    | {"∞": "\\infty ", "°": "^\\circ ", "×": "\\times ", "∅": "\\emptyset ", "−": "-", "·": "\\cdot ", "÷": "/"}
)
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
POWER = re.compile(f"[{RAISED}]+")
ROOT = re.compile(r"√(?:(\d+|[A-Za-z])|\(([^()]*)\))")
STARS = re.compile(r"\*\*\s*(-?\d+(?:\.\d+)?)?")
THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:,?\\[,!]|,\s\\!|\{,\})\d{3})+(?!\d)")
NO_DIGIT = re.compile(r"\D+")
MIXED = re.compile(r"(?<![\d.,/^])(\d{1,9})\s+(\d{1,9})/(\d{1,9})(?![\d.])")
BINOMIAL = re.compile(r"\\([td]?)binom\s*(\d)\s*(\d)")
REPEATING = re.compile(r"(?<![\d.,])(\d{0,9})\.(\d{0,9})\\overline\{(\d{1,9})\}(?![\d{])")
POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
WORD = "(thousand|million|billion|trillion)\\b"
SCALE = re.compile(rf"(?<=[\d}}])\s*\\?[, ~]?\s*(?:\\(?:text|mathrm|mbox|textrm)\{{\s*{WORD}\s*([^{{}}]*)\}}|{WORD})", re.I)
INSIDE = re.compile(r"\{[^{}]*\\pm[^{}]*")
TEXT = re.compile(r"\\(?:text|mathrm|mbox|textrm|textbf|textit|mathbf|operatorname)\{([^{}]*)\}")
# Another number, or a word that takes back what was said or says something else. Not powers of units and remainders.
MORE = re.compile(r"(?<![A-Za-z^_{\d.])\d|\b(?:or|not)\b", re.I)
REMAINDER = re.compile(r"\(?\s*mod(?:ulo)?\s+\d+\s*\)?", re.I)
CONNECTIVES = {"or", "and"}
# A number and up to four plain words behind it, which say of what; each has three letters or more, as no variable has.
COUNTED = re.compile(r"(-?\s?\\?[$€£]?\s?\d[\d,]*(?:\.\d+)?)((?:\s+(?:[a-z]{3,}|of|per|a|an|in)){1,4})", re.I)
NO_UNITS = {*POWERS, "hundred", "dozen", "percent", "not", "times", "plus", "minus", "over", "and", "mod"}
NO_UNITS |= {"sqrt", "sin", "cos", "tan", "log", "exp"}
BASED = re.compile(r"(\d[\dA-F]{0,99})_(?:\{(\d{1,2})\}|(\d))")


def readable(text: str) -> str:
    r"""Return an expression in the parser's notation.

    Among what is rewritten: 1 1/2, 10\,000, x**10, 0.\overline{3}, \binom52, ½, √2, 1.5 \text{ million}.
    """
    text = POWER.sub(lambda found: "^{" + "".join(str(RAISED.index(sign)) for sign in found[0]) + "}", text)
    text = ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text.translate(SIGNS))
    text = STARS.sub(lambda found: f"^{{{found[1]}}}" if found[1] else "^", text)
    text = THOUSANDS.sub(lambda found: NO_DIGIT.sub("", found[0]), text)
    text = MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = BINOMIAL.sub(r"\\\1binom{\2}{\3}", text)
    text = REPEATING.sub(_repeating, text).replace("\\varnothing", "\\emptyset")
    return _both(SCALE.sub(_scaled, text))


def says_more(found: str, right: str) -> bool:
    r"""Return whether text beside an expression names other numbers, 'or' and 'not': 5 \text{ (or 7)}.

    What the right expression says too does not count.
    """
    known = {_plain(text) for text in TEXT.findall(right)}
    for match in TEXT.finditer(found):
        text = _plain(match[1])
        if match[0] != found and text not in known | CONNECTIVES and MORE.search(REMAINDER.sub("", text)):
            return True
    return False


def without_unit(found: str) -> str:
    """Return the number of '18 eggs' or '$5 per day'; everything else as it is."""
    counted = COUNTED.fullmatch(found.strip())
    if counted is None or NO_UNITS & set(_plain(counted[2]).split()):
        return found
    return counted[1].strip()


def same_base(found: str, right: str) -> bool | None:
    """Return, of two numbers to a base, whether they are the same; None where one of them is not written so."""
    first, second = BASED.fullmatch(found.replace(" ", "")), BASED.fullmatch(right.replace(" ", ""))
    if first is None or second is None:
        return None
    try:
        return int(first[1], int(first[2] or first[3])) == int(second[1], int(second[2] or second[3]))
    except ValueError:  # no digits of that base
        return False


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _scaled(found: re.Match[str]) -> str:
    r"""Return a million as a number, and the unit in the same text: \text{ million dollars}."""
    unit = f"\\text{{ {found[2].strip()}}}" if found[2] and found[2].strip() else ""
    return f"\\times 10^{{{POWERS[(found[1] or found[3]).lower()]}}}{unit}"


def _repeating(found: re.Match[str]) -> str:
    whole, fixed, again = found[1], found[2], found[3]
    below = 10 ** len(fixed) * (10 ** len(again) - 1)
    above = int(whole + fixed + again) - int(whole + fixed or "0")
    return f"\\frac{{{above}}}{{{below}}}"


def _both(text: str) -> str:
    r"""Return both values of an expression that has one \pm in braces; elsewhere the parser knows it."""
    if text.count("\\pm") != 1 or "," in text or INSIDE.search(text) is None:
        return text
    first, second = text.split("\\pm")
    return f"{first}+{second}, {first}-{second}"
