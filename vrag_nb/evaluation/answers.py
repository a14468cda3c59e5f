"""Is an answer right? Rules only, so that two runs and two machines agree; no model judges here.

    is_correct("$1,200.50", "1200.5")          True
    is_correct("4.2 million", "4,200,000")     True
    is_correct("12%", "12")                    True   (the unit is left out on one side)
    is_correct("12%", "$12")                   False  (two units that contradict each other)
    is_correct("2019", "2018", tolerance=0.01) False  (a year is a name, never a quantity)

The rules, the first that applies decides:

1. *No answer* (None, or nothing left after normalisation) is wrong, whatever the reference.
2. *Not answerable.* A reference that says so is met by any of a fixed list of ways of saying so and by nothing else;
   such an answer to any other reference is wrong.
3. *Same words.* Equal after `normalise`: Unicode compatibility forms, case, white space, articles, punctuation that is
   not inside a number or a word.
4. *Lists.* Both sides hold as many parts, split at ";", "and", "," followed by a space (or written in brackets), and
   the parts agree as a multiset under rules 3, 5 and 6. Order does not matter; a
   missing or an additional part is wrong.
5. *Numbers.* Both sides are one number each, with an optional sign, currency and unit. Thousands separators, trailing
   zeros and the kind of minus mean nothing; accounting brackets negate ("(5)" is -5); a magnitude (k, M, bn,
   thousand, million, ...) multiplies, a single letter only where it touches the digits or follows a currency ("5 m"
   are metres). "12%" is not 0.12. Units must not contradict: "12%" is "12" and "12 percent" but not "$12". The values
   must be equal; with `tolerance` > 0 they may differ by that share of the reference's size, unless both are years
   (integers from 1000 to 2199 without unit, sign, separator or decimals), which are always exact.
6. *Dates.* Both sides are one full date (2019-03-05, 5 March 2019, March 5, 2019): the same day.

The tolerance is zero by default: questions of a generated corpus have answers printed on the page or computed from
printed values, so a near miss is a misreading. MMLongBench-Doc's own scorer allows 1% for floats (arXiv 2407.01523);
pass `tolerance=0.01` to compare with figures made so.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation

NOT_ANSWERABLE = "not answerable"
_WAYS_TO_SAY_IT = frozenset(
    {
        "not answerable",
        "unanswerable",
        "cannot be answered",
        "can not be answered",
        "can't be answered",
        "question cannot be answered",
        "not enough information",
        "insufficient information",
        "no information",
        "not given",
        "not stated",
        "not specified",
        "not provided",
        "not available",
        "not mentioned",
        "not found",
        "unknown",
        "n/a",
    }
)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_MINUS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "≥": ">=", "≤": "<="}
)
_ARTICLES = re.compile(r"(?:(?<=^)|(?<=\s))(?:a|an|the)\s+(?=\S)")  # "Table A" keeps its letter
_MAGNITUDES = {
    "k": 3, "thousand": 3, "m": 6, "mn": 6, "mio": 6, "million": 6, "millions": 6,
    "b": 9, "bn": 9, "billion": 9, "billions": 9, "t": 12, "tn": 12, "trillion": 12, "trillions": 12,
}  # fmt: skip
_UNITS = {
    "%": "%", "percent": "%", "per cent": "%", "pct": "%", "percentage points": "%", "pp": "%",
    "$": "$", "us$": "$", "usd": "$", "dollar": "$", "dollars": "$",
    "€": "€", "eur": "€", "euro": "€", "euros": "€",
    "£": "£", "gbp": "£", "pound": "£", "pounds": "£", "¥": "¥", "jpy": "¥", "yen": "¥",
    "degree": "°", "degrees": "°", "deg": "°", "celsius": "°c", "degrees celsius": "°c", "° c": "°c", "° celsius": "°c",
}  # fmt: skip
_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<currency>us\$|[$€£¥]|usd|eur|gbp|jpy)?\s*(?P<sign2>[-+]?)"
    r"(?P<digits>\d{1,3}(?:[, ']\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?P<exponent>e[-+]?\d{1,3}(?![\d.]))?"
    r"(?P<unit>\s*(?:%|[^\d\s.,;%][^\d,;%]*))?"
)
_MONTH = re.compile(r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?(?=\s|$)")
_DATE_FORMS = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y", "%d.%m.%Y")
_COMPARED = re.compile(r"([<>]=?)\s+(?=\S)")  # "< 5" is "<5"
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")


@dataclass(frozen=True)
class Number:
    """A parsed number. `unit`: %, a currency sign, another unit as written, or empty. `plain`: only digits, no unit."""

    value: Decimal
    unit: str
    plain: bool

    @property
    def is_year(self) -> bool:
        return self.plain and 1000 <= self.value < 2200


def _one_spelling(text: str) -> str:
    """Compatibility characters in their plain form (NFKC), raised digits as powers: 1² is not 12."""
    return unicodedata.normalize("NFKC", _RAISED.sub(lambda found: f"^{found.group()}", text))


def normalise(text: str) -> str:
    """The words of an answer in one spelling: lower case, one space, no articles, no punctuation around words."""
    text = _one_spelling(text).translate(_MINUS).casefold()
    words = [_bare(word) for word in _COMPARED.sub(r"\1", text).split()]
    words = [word for word in words if any(char.isalnum() or char in "%$€£¥-+<>" for char in word)]
    kept = " ".join(words)
    without = " ".join(_ARTICLES.sub(" ", kept).split())
    return without or kept  # an answer "A" stays one


def _bare(word: str) -> str:
    """A word without punctuation around it; "<5" and ">5" are no 5, "<b>" is."""
    around = "\"'`.,;:!?()[]{}*_"
    bare = word.strip(around)
    if bare.startswith("<") and bare.endswith(">"):
        bare = bare.strip("<>" + around)
    return bare or word


def is_not_answerable(text: str) -> bool:
    """Whether a text says that the question cannot be answered (rule 2)."""
    words = normalise(text)
    words = re.sub(r"^(?:it is|this is|question is|it|this|question)\s+", "", words)
    return words in _WAYS_TO_SAY_IT


def is_correct(answer: str | None, reference: str, tolerance: float = 0.0) -> bool:
    """Whether `answer` is `reference` under the module's rules.

    tolerance: share of the reference's size by which two numbers that are no years may differ. Raises ValueError for a
    negative one.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance {tolerance} must be 0 or more")
    if answer is None or not normalise(answer):
        return False
    if is_not_answerable(reference) or is_not_answerable(answer):
        return is_not_answerable(reference) and is_not_answerable(answer)
    if _same(answer, reference, tolerance):
        return True
    return _same_list(_parts(answer), _parts(reference), tolerance)


def parse_number(text: str) -> Number | None:
    """The one number that `text` is, or None when it is something else (rule 5)."""
    text = _one_spelling(text).translate(_MINUS).casefold().strip().strip("\"'`;:!?*_").strip()
    text = text.removesuffix(".").removeprefix("~").strip()
    negative = re.fullmatch(r"\((.*\d.*)\)", text)
    match = _NUMBER.fullmatch(negative.group(1) if negative else text)
    if match is None:
        return None
    try:
        value = Decimal(re.sub(r"[, ']", "", match["digits"]) + (match["exponent"] or ""))
    except InvalidOperation:
        return None
    written = match["unit"] or ""
    if _no_unit(written):
        return None
    power, unit = _read_unit(written, _UNITS.get(match["currency"] or "", ""))
    if (match["sign"] == "-") != (match["sign2"] == "-") or negative:
        value = -value
    plain = match["digits"].isdigit() and not (unit or power or match["sign"] or match["sign2"] or match["exponent"])
    return Number(value.scaleb(power), unit, plain and not negative)


def parse_date(text: str) -> datetime | None:
    """The full date that `text` is, or None (rule 6)."""
    words = " ".join(_ORDINAL.sub("", _one_spelling(text).casefold()).replace(",", " ").split())
    for form in _DATE_FORMS:
        try:
            return datetime.strptime(words.strip(" ."), form)
        except ValueError:
            continue
    return None


def _no_unit(written: str) -> bool:
    """What follows the digits makes it no quantity: "27 October", "1960s", or a sentence of more than three words."""
    return written == "s" or len(written.split()) > 3 or _MONTH.match(written.strip()) is not None


def _read_unit(written: str, currency: str) -> tuple[int, str]:
    """(power of ten, unit) of what follows a number: "million usd" is (6, "$")."""
    words = written.strip(" .").split()
    power = 0
    alone = len(written.split()[0]) == 1 and written[0].isspace() and not currency if words else False
    if words and words[0] in _MAGNITUDES and not alone:  # "5 m" are metres, "5m" and "$5 m" millions
        power = _MAGNITUDES[words.pop(0)]
    rest = " ".join(words)
    unit = _UNITS.get(rest, rest)
    if currency and unit and unit != currency:
        return power, f"{currency} {unit}"
    return power, unit or currency


def _same(answer: str, reference: str, tolerance: float) -> bool:
    """Rules 3, 5 and 6 on two texts that are not taken apart."""
    if normalise(answer) == normalise(reference):
        # words alone would let "(5)" pass for "5": where both are numbers, the numbers decide
        numbers = parse_number(answer), parse_number(reference)
        return None in numbers or _same_number(*numbers, tolerance)  # type: ignore[arg-type]
    found, wanted = parse_number(answer), parse_number(reference)
    if found is not None and wanted is not None:
        return _same_number(found, wanted, tolerance)
    day = parse_date(reference)
    return day is not None and parse_date(answer) == day


def _same_number(found: Number, wanted: Number, tolerance: float) -> bool:
    if found.unit and wanted.unit and found.unit != wanted.unit:
        return False
    if found.is_year and wanted.is_year:
        return found.value == wanted.value
    return abs(found.value - wanted.value) <= Decimal(str(tolerance)) * abs(wanted.value)


def _parts(text: str) -> list[str]:
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text, re.DOTALL)
    parts = re.split(r";|,(?=\s)|\s+and\s+|\n", inner.group(1) if inner else text)
    return [part.strip(" '\"") for part in parts if normalise(part)]


def _same_list(found: list[str], wanted: list[str], tolerance: float) -> bool:
    """Rule 4; each part of the reference takes one part of the answer, exact ones first."""
    if len(found) != len(wanted) or len(wanted) < 2:
        return False
    left = list(found)
    for part in sorted(wanted, key=lambda part: part not in left):
        match = next((one for one in left if _same(one, part, tolerance)), None)
        if match is None:
            return False
        left.remove(match)
    return True
