"""Is an answer right? Rules only, so that two runs and two machines agree; no model judges here.

    is_correct("$1,200.50", "1200.5")          True
    is_correct("4.2 million", "4,200,000")     True
    is_correct("12%", "12")                    True   (the unit is left out on one side)
    is_correct("12%", "$12")                   False  (two units that contradict each other)
    is_correct("2019", "2018", tolerance=0.01) False  (a year is a name, never a quantity)
    is_right("both", question)                 True   where the data set names it beside the reference

The rules, the first that applies decides:

1. *No answer* (None, or nothing left after normalisation) is wrong, whatever the reference.
2. *Not answerable.* A reference that says so is met by any of a fixed list of ways of saying so and by nothing else;
   such an answer to any other reference is wrong.
3. *Same words.* Equal after `normalise`: Unicode compatibility forms, case, white space, articles, punctuation that is
   not inside a number or a word; "&" is "and". The "A," of a list is no article.
4. *Lists.* Both sides hold as many parts, split at ";" and line ends or, where there are none, at "and" and "," that
   a space follows, or at such commas alone ("Serbia, Bosnia and Herzegovina"); in brackets or not, with bullets or
   numbers before the items or not; and the parts agree as a multiset under rules 3 to 6. Order does not matter; a
   missing or an additional part is wrong, and so are the values of named parts that have changed places.
5. *Numbers.* Both sides are one number each, with an optional sign, currency and unit. Thousands separators, trailing
   zeros and the kind of minus mean nothing; accounting brackets negate ("(5)" is -5, "$(5) million" too); a magnitude
   (k, M, bn, thousand, million, ...) multiplies, a single letter only where it touches the digits or follows a
   currency ("5 m" are metres). "12%" is not 0.12. Units must not contradict: "12%" is "12" and "12 percent" but not
   "$12", "$5 per share" is "$5" but not "$5 per unit"; singular, plural and abbreviation are one unit. A bound ("10+")
   is no number.
   The values must be equal; with `tolerance` > 0 they may differ by that share of the reference's size, unless both
   are years (integers from 1000 to 2199 without unit, sign, separator or decimals), which are always exact.
6. *Dates.* Both sides are one full date (2019-03-05, 5 March 2019, March 5, 2019): the same day.

The tolerance is zero by default: questions of a generated corpus have answers printed on the page or computed from
printed values, so a near miss is a misreading. MMLongBench-Doc's own scorer allows 1% for floats (arXiv 2407.01523);
pass `tolerance=0.01` to compare with figures made so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import product

import numpy as np
from scipy.optimize import linear_sum_assignment

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.records import Question

Verdict = Callable[[Trajectory], bool | None]  # None where there is no reference
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
_ARTICLES = frozenset({"a", "an", "the"})
_MAGNITUDES = {
    "hundred": 2, "hundreds": 2, "k": 3, "thousand": 3, "thousands": 3, "lakh": 5, "lakhs": 5, "m": 6, "mn": 6,
    "mio": 6, "mln": 6, "million": 6, "millions": 6, "crore": 7, "crores": 7, "b": 9, "bn": 9, "mrd": 9, "billion": 9,
    "billions": 9, "t": 12, "tn": 12, "trillion": 12, "trillions": 12,
}  # fmt: skip
_CODES = {  # of currencies: what they are written as
    "rs.": "₹", "rs": "₹", "usd": "$", "us$": "$", "eur": "€", "gbp": "£", "jpy": "¥", "inr": "₹", "krw": "₩",
    "rub": "₽", "rmb": "cny",
    **{code: code for code in (
        "cny", "chf", "nok", "sek", "dkk", "pln", "czk", "cad", "aud", "nzd", "hkd", "sgd", "brl", "mxn", "zar", "try",
    )},
}  # fmt: skip
_UNITS = {
    "%": "%", "percent": "%", "per cent": "%", "pct": "%", "percentage points": "%", "pp": "%",
    "dollar": "$", "dollars": "$", "us dollar": "$", "us dollars": "$", "euro": "€", "euros": "€", "pound": "£",
    "pounds": "£", "yen": "¥", "rupee": "₹", "rupees": "₹", "yuan": "cny", **_CODES,
    "degree": "°", "degrees": "°", "deg": "°", "celsius": "°c", "degrees celsius": "°c", "degrees c": "°c", "° c": "°c",
    "° celsius": "°c",
}  # fmt: skip
_SYMBOLS = frozenset({"%", *_CODES.values()})
_WRITTEN = frozenset({*_CODES, *"$€£¥₹₩₽"})  # currencies
_SHORT = {  # units of one word, in the singular
    "hour": "h", "hr": "h", "minute": "min", "second": "s", "sec": "s", "yr": "year", "kilogram": "kg", "gram": "g",
    "tonne": "t", "ton": "t", "kilometre": "km", "kilometer": "km", "metre": "m", "meter": "m", "centimetre": "cm",
    "centimeter": "cm", "millimetre": "mm", "millimeter": "mm", "litre": "l", "liter": "l", "mile": "mi", "m2": "m^2",
    "m3": "m^3",
}  # fmt: skip
_BOUND = re.compile(
    r"\+|\b(?:or|and) (?:more|less|fewer|higher|lower|greater|above|below|over|under|up|older|younger)\b"
)
_ANY_CURRENCY = "|".join(map(re.escape, (*_CODES, *"$€£¥₹₩₽")))
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<currency>{_ANY_CURRENCY})?\s*(?P<sign2>[-+]?)"
    r"(?P<digits>\d{1,3}(?:[, ']\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?P<exponent>e[-+]?\d{1,3}(?![\d.]))?"
    # digits belong to a unit after two letters (CO2), as a power (m^2), or as m2 and m3
    r"(?P<unit>\s*(?:%|[^\d\s.,;%])(?:[^\d,;%]|(?<=[^\W\d_]{2})\d|\^-?\d|(?<=\sm)[23])*)?"
)
_BEHIND = "|".join(
    sorted(map(re.escape, {*_UNITS, *_SYMBOLS, *(one for one in _MAGNITUDES if one[1:])}), key=len)[::-1]
)
_NEGATED = re.compile(  # as accountants write it: a currency may stand before the brackets, magnitudes and units after
    rf"((?:{_ANY_CURRENCY})?\s*)\(([^()]*\d[^()]*)\)((?:[kmbt](?![a-z]))?(?:\s*(?:{_BEHIND})\.?(?![a-z]))*)"
)
_GLUED = re.compile(r"(?<=[a-z])([$€£¥₹₩₽])")
_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
_MONTH = re.compile(rf"(?:{_MONTHS})\.?(?=\s|$)")
_DAY_COMMA = re.compile(rf"(?i)(\b(?:{_MONTHS})\.?\s+\d{{1,2}}(?:st|nd|rd|th)?),(?=\s+\d{{4}}\b)")
_RANGE = re.compile(r"(?<=[\d%])\s+-\s+(?=[$€£¥₹]?\d)")  # "10 - 20" is "10-20"
_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
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
    text = _RANGE.sub("-", _one_spelling(text).translate(_MINUS)).replace(" & ", " and ")
    words = [(word, _bare(word.casefold())) for word in _COMPARED.sub(r"\1", text).split()]
    words = [(word, bare) for word, bare in words if any(char.isalnum() or char in "%$€£¥₹-+<>" for char in bare)]
    last = len(words) - 1  # an answer "A" stays one, "Table A" keeps its letter, and so do "A, B" and "(a) and (b)"
    shouted = text.isupper()

    def is_article(place: int, word: str, bare: str) -> bool:
        letter = word == "A" and place and not shouted  # "Class A shares"
        return place != last and bare in _ARTICLES and word.casefold().endswith(bare) and not letter

    return " ".join(bare for place, (word, bare) in enumerate(words) if not is_article(place, word, bare))


def _bare(word: str) -> str:
    """A word without punctuation around it; "<5" and ">5" are no 5, "<b>" is."""
    around = "\"'`.,;:!?()[]{}*_"
    bare = word.strip(around)
    if re.match(r"\W*\.\d", word) and bare[:1].isdigit():
        bare = f".{bare}"
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
    return _agree(answer, reference, tolerance)


def is_right(answer: str | None, question: Question, tolerance: float = 0.0) -> bool:
    """Whether `answer` is one of the question's right answers. Raises what `is_correct` raises."""
    return any(is_correct(answer, one, tolerance) for one in question.right_answers)


def answered_right(trajectory: Trajectory, question: Question | None = None) -> bool | None:
    """Whether a trajectory ended with a right answer to `question`, by default its own reference; None without one."""
    asked = question or trajectory.reference
    return None if asked is None else trajectory.status == "answered" and is_right(trajectory.answer, asked)


def parse_number(text: str) -> Number | None:
    """The one number that `text` is, or None when it is something else (rule 5)."""
    text = _one_spelling(text).translate(_MINUS).casefold().strip().strip("\"'`;:!?*_").strip()
    text = text.removesuffix(".").removeprefix("~").strip()
    negative = _NEGATED.fullmatch(text)
    match = _NUMBER.fullmatch("".join(negative.groups()) if negative else text)
    if match is None:
        return None
    try:
        value = Decimal(re.sub(r"[, ']", "", match["digits"]) + (match["exponent"] or ""))
    except InvalidOperation:
        return None
    written = match["unit"] or ""
    if _no_unit(written) or _BOUND.search(written):
        return None
    power, unit = _read_unit(written, _CODES.get(match["currency"] or "", match["currency"] or ""))
    if (match["sign"] == "-") != (match["sign2"] == "-") or negative:
        value = -value
    plain = match["digits"].isdigit() and not (unit or power or match["sign"] or match["sign2"] or match["exponent"])
    return Number(value.scaleb(power), unit, plain and not negative)


def parse_date(text: str) -> datetime | None:
    """The full date that `text` is, or None (rule 6)."""
    words = " ".join(_ORDINAL.sub("", _one_spelling(text).casefold()).replace(",", " ").split())
    words = re.sub(r"\bsept\b", "sep", re.sub(rf"\b({_MONTHS})\.", r"\1", words))
    for form in _DATE_FORMS:
        try:
            return datetime.strptime(words.strip(" ."), form)
        except ValueError:
            continue
    return None


def _no_unit(written: str) -> bool:
    """What follows the digits makes it no quantity: "27 October", "1960s", "1976–", or more than three words."""
    return written.strip() in ("s", "-") or len(written.split()) > 3 or _MONTH.match(written.strip()) is not None


def _read_unit(written: str, currency: str) -> tuple[int, str]:
    """(power of ten, unit) of what follows a number: "million usd" is (6, "$")."""
    words = _GLUED.sub(r" \1", written.strip(" .")).split()
    if len(words) > 1 and words[0] in _WRITTEN:  # "5 USD million"
        currency = currency or _CODES.get(words[0], words[0])
        words.pop(0)
    paid = currency or any(word in _WRITTEN for word in words)
    alone = bool(words) and len(words[0]) == 1 and written[0].isspace() and not paid  # "5 m" are metres
    power = 0
    while words and words[0].rstrip(".") in _MAGNITUDES and not alone and not (power and len(words[0]) < 3):
        power += _MAGNITUDES[words.pop(0).rstrip(".")]
    unit = _unit(words)
    if currency and unit and unit.split()[0] != currency:
        return power, f"{currency} {unit}"
    return power, unit or currency


def _unit(words: list[str]) -> str:
    """A unit in one spelling: "percent of sales" is "% of sale"."""
    sizes = range(len(words), 0, -1)
    known = next((size for size in sizes if " ".join(words[:size]) in _UNITS), 0)
    named = [_UNITS[" ".join(words[:known])]] if known else []
    return " ".join([*named, *map(_singular, words[known:])])


def _singular(word: str) -> str:
    """A unit's word without its plural, shortened where that is usual: "hours" and "hr" are "h"."""
    one = word.rstrip(".")
    if len(one) > 2 and one.endswith("s") and not one.endswith("ss"):
        one = one[:-1]
    return _SHORT.get(one, one)


def _agree(answer: str, reference: str, tolerance: float) -> bool:
    """Rules 3 to 6: the same as they stand, or part by part."""
    if _same(answer, reference, tolerance):
        return True
    return any(_same_list(*both, tolerance) for both in product(_splits(answer), _splits(reference)))


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
    if _contradict(_halves(found.unit), _halves(wanted.unit)):
        return False
    if found.is_year and wanted.is_year:
        return found.value == wanted.value
    return abs(found.value - wanted.value) <= Decimal(str(tolerance)) * abs(wanted.value)


def _halves(unit: str) -> tuple[str, str]:
    """The currency or percent sign of a unit, and what is left of it."""
    first, _, rest = unit.partition(" ")
    return (first, rest) if first in _SYMBOLS else ("", unit)


def _contradict(found: tuple[str, str], wanted: tuple[str, str]) -> bool:
    """Whether two units do: one may leave out what the other says, but not say something else in its place."""
    (sign, rest), (other_sign, other_rest) = found, wanted
    if "°" in (rest, other_rest) and rest.startswith("°") and other_rest.startswith("°"):
        return sign != other_sign  # which degrees they are was left out
    if (sign and other_sign and sign != other_sign) or (rest and other_rest and rest != other_rest):
        return True
    return bool(
        (sign and not rest and other_rest and not other_sign) or (other_sign and not other_rest and rest and not sign)
    )


def _splits(text: str) -> list[list[str]]:
    """The ways to take a list apart: as `list_parts` does, and at commas alone, as names may hold an "and"."""
    parts, pieces = list_parts(text), list_parts(text, at_and=False)
    return [parts] if pieces == parts else [parts, pieces]


def list_parts(text: str, at_and: bool = True) -> list[str]:
    """What a list holds, split at its strongest separators; a part may be a list itself. at_and: "and" is one."""
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text, re.DOTALL)
    text = _DAY_COMMA.sub(r"\1", inner.group(1) if inner else text)
    text = re.sub(r"[ \t\xa0]+", " ", text)  # the patterns below take time with the square of a run
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(map(_ITEM.match, lines)):
        text = "\n".join(_ITEM.sub("", line, count=1) for line in lines)
    strong = re.search(r"[;\n]", text.strip(" ;\n"))
    weak = r",(?=\s)|\s+(?:and|&)\s+" if at_and else r",\s+(?:and\s+)?"
    parts = re.split(r"[;\n]" if strong else weak, text.strip(" ;\n"))
    parts = [re.sub(r"^\s*(?:and|&)\s+", "", part, flags=re.IGNORECASE) for part in parts] if strong else parts
    return [part.strip(" '\"") for part in parts if normalise(part)]


def _same_list(found: list[str], wanted: list[str], tolerance: float) -> bool:
    """Rule 4; each part of the reference takes one part of the answer, in whichever way all of them find one."""
    if len(found) != len(wanted) or len(wanted) < 2:
        return False
    agree = np.array([[one == part or _agree(one, part, tolerance) for one in found] for part in wanted])
    return bool(agree[linear_sum_assignment(agree, maximize=True)].all())
