"""What is made up for a deck: who wrote it, when, what comes next, how the numbers were gathered, and the small print.

None of it is true of the real tables; the decks are a world of their own. It gives text questions answers that no
table holds: names, dates, places, codes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from vrag_nb.documents.decks.statements import Statement, stated
from vrag_nb.documents.decks.words import MONTHS, day, listed, person

CITIES = listed(
    """Lisbon Oslo Vienna Kyoto Nairobi Lima Quito Hanoi Tunis Riga Turin Porto Bergen Leeds Graz Basel Ghent Malmo
    Utrecht Bristol Denver Austin Ottawa Halifax Perth Hobart Dakar Accra Doha Muscat Busan Osaka Pune Cusco
    Salta Bogota Recife Split Sofia Tallinn"""
)

Form = tuple[str, str, str, str]  # sentence, answer, question, words that find the page


def _made(form: Form) -> Statement:
    text, answer, ask, hint = form
    asks = (f"In the {{deck}} deck, {ask}?", f"{ask[0].upper()}{ask[1:]} according to the {{deck}} deck?")
    return stated(text, answer, asks, hint)


def front_matter(rng: random.Random) -> list[Statement]:
    """Author, date and place for the first page."""
    who, when, where = person(rng), day(rng), rng.choice(CITIES)
    forms: list[Form] = [
        rng.choice(
            [
                ("Prepared by {a}", who, "who prepared the presentation", "prepared by"),
                ("Presented by {a}", who, "who is named as the presenter", "presented by"),
            ]
        ),
        rng.choice(
            [
                ("{a}", when, "what date is on the title page", "title page date"),
                ("Issued on {a}", when, "on what date was the document issued", "issued on"),
            ]
        ),
        ("Location: {a}", where, "what location is on the title page", "location"),
    ]
    return [_made(form) for form in forms[: rng.choice([2, 3, 3])]]


def next_steps(rng: random.Random) -> list[Statement]:
    """Bullets for the last page."""
    names, days = [person(rng) for _ in range(4)], [day(rng) for _ in range(3)]
    forms: list[Form] = [
        ("{a} prepares the next edition.", names[0], "who prepares the next edition", "next steps next edition"),
        ("The next review takes place on {a}.", days[0], "when does the next review take place", "next steps review"),
        ("{a} collects comments.", names[1], "who collects comments", "next steps comments"),
        ("Comments are welcome until {a}.", days[1], "until when are comments welcome", "next steps comments until"),
        (
            "The follow-up meeting is in {a}.",
            rng.choice(CITIES),
            "where is the follow-up meeting",
            "next steps meeting",
        ),
        ("{a} will check open figures.", names[2], "who will check open figures", "next steps open figures"),
        ("The archive copy goes to {a}.", names[3], "who receives the archive copy", "next steps archive copy"),
    ]
    return [_made(form) for form in rng.sample(forms, 4)]


def method(rng: random.Random) -> list[Statement]:
    """How the numbers came about."""
    names = [person(rng) for _ in range(3)]
    forms: list[Form] = [
        ("The tables were compiled by {a}.", names[0], "who compiled the tables", "method compiled"),
        (
            "Entries were checked twice in {a}.",
            rng.choice(CITIES),
            "where were entries checked twice",
            "method checked",
        ),
        ("The data set was frozen on {a}.", day(rng), "on what date was the data set frozen", "method data set frozen"),
        (
            "{a} records were removed as duplicates.",
            f"{rng.randint(2, 999)}",
            "how many records were removed as duplicates",
            "method duplicates",
        ),
        (
            "Rounding follows rule {a}.",
            f"{rng.choice('ABCDEFR')}{rng.randint(2, 99)}",
            "which rule does rounding follow",
            "method rounding rule",
        ),
        (
            "The response rate was {a}.",
            f"{rng.randint(31, 98)}.{rng.randint(0, 9)}%",
            "what was the response rate",
            "method response rate",
        ),
        ("{a} reviewed the method.", names[1], "who reviewed the method", "method reviewed"),
        (
            "The work took {a} working hours.",
            f"{rng.randint(40, 2400):,}",
            "how many working hours did the work take",
            "method working hours",
        ),
        (
            "Missing values: {a} of all cells.",
            f"0.{rng.randint(1, 9)}%",
            "what share of all cells is missing",
            "method missing values",
        ),
        ("The translation was done by {a}.", names[2], "who did the translation", "method translation"),
    ]
    return [_made(form) for form in rng.sample(forms, len(forms))]


def small_print(rng: random.Random, title: str) -> Statement:
    """A footnote for the page called `title`."""
    who, when, number = person(rng), day(rng), rng.randint(2, 980)
    code = f"{rng.choice('ABCDEFGHKLMNPRSTUVW')}{rng.choice('ABCDEFGHKLMNPRSTUVW')}-{rng.randint(1000, 9999)}"
    margin = f"{rng.randint(1, 9)}.{rng.randint(1, 9)}%"
    page = f'"{title}"'
    text, answer, ask, hint = rng.choice(
        [
            ("Figures checked by {a}.", who, f"who checked the figures on the page {page}", "checked by"),
            ("Revised on {a}.", when, f"on what date were the figures on the page {page} revised", "revised on"),
            ("Next update due {a}.", when, f"when is the next update of the page {page} due", "next update"),
            ("Document no. {a}.", code, f"what is the document number given on the page {page}", "document number"),
            ("Margin of error: {a}.", margin, f"what margin of error is stated on the page {page}", "margin of error"),
            ("Sample: n = {a}.", f"{number:,}", f"what sample size is given on the page {page}", "sample size"),
            (
                "See annex table {a}.",
                f"{rng.randint(1, 9)}.{rng.randint(1, 30)}",
                f"which annex table does the page {page} refer to",
                "annex table",
            ),
            ("Questions to {a}.", who, f"to whom should questions about the page {page} be sent", "questions to"),
        ]
    )
    asks = (f"In the {{deck}} deck, {ask}?", f"{ask[0].upper()}{ask[1:]} of the {{deck}} deck?")
    return stated(text, answer, asks, f"{title} {hint}")


def about_page(item: Statement, drawn: str, title: str) -> Statement:
    """A footnote made for the page called `drawn`, for the title that it has."""
    asks = tuple(ask.replace(f'"{drawn}"', f'"{title}"') for ask in item.asks)
    return replace(item, asks=asks, hint=title + item.hint.removeprefix(drawn))


# ------------------------------------------------------------------------------------------------------- registers


@dataclass(frozen=True)
class Register:
    """A table of words: a header, and rows of a key and its entry. `ask` has a `{key}` to fill."""

    title: str
    headers: tuple[str, str]
    rows: tuple[tuple[str, str], ...]
    ask: str

    def statement(self, key: str, entry: str) -> Statement:
        """The row as something to ask about."""
        return _made(("{a}", entry, self.ask.format(key=key), f"{self.title} {key}"))


_ROLES = (
    "Project lead",
    "Data editor",
    "Statistician",
    "Map maker",
    "Archivist",
    "Proofreader",
    "Field manager",
    "Treasurer",
    "Press officer",
    "Librarian",
    "Interviewer",
    "Designer",
    "Translator",
    "Auditor",
)
_MILESTONES = (
    "Kick-off",
    "Data request",
    "First draft",
    "Pilot study",
    "Field work",
    "Data cleaning",
    "Peer review",
    "Second draft",
    "Print run",
    "Final report",
    "Public hearing",
    "Audit",
)
_ITEMS = (
    "Travel",
    "Printing",
    "Software",
    "Interviews",
    "Translation",
    "Storage",
    "Training",
    "Rent",
    "Postage",
    "Equipment",
    "Catering",
    "Insurance",
)


def registers(rng: random.Random) -> list[Register]:
    """Tables about the making of the deck: team, milestones, budget, offices."""
    count = rng.randint(5, 8)
    team = Register(
        "Project team",
        ("Role", "Name"),
        tuple((r, person(rng)) for r in rng.sample(_ROLES, count)),
        "who is the {key} in the project team",
    )
    dates = Register(
        "Milestones",
        ("Step", "Date"),
        tuple((m, day(rng)) for m in rng.sample(_MILESTONES, count)),
        'on what date is the milestone "{key}"',
    )
    budget = Register(
        "Project budget",
        ("Item", "Euro"),
        tuple((i, f"{rng.randint(12, 960) * 10:,}") for i in rng.sample(_ITEMS, count)),
        'how many euros are budgeted for "{key}"',
    )
    offices = Register(
        "Contact offices",
        ("City", "Room"),
        tuple((c, f"{rng.choice('ABCDE')}{rng.randint(100, 499)}") for c in rng.sample(CITIES, count)),
        "which room does the office in {key} use",
    )
    months = rng.sample(MONTHS, count)
    months.sort(key=MONTHS.index)
    rota = Register(
        "Duty rota", ("Month", "On duty"), tuple((m, person(rng)) for m in months), "who is on duty in {key}"
    )
    found = [team, dates, budget, offices, rota]
    rng.shuffle(found)
    return found


def plain(lines: list[str]) -> list[Statement]:
    """Sentences that hold nothing to ask about."""
    return [Statement(line, "", (), "") for line in lines]


PROSE = tuple(
    line.strip()
    for line in """
    The figures follow the definitions of the original source and were not adjusted any further.
    Small differences should not be read as trends, since the underlying counts are rounded.
    Readers who compare these numbers with earlier editions should keep in mind that some entries were revised.
    The order of the entries is that of the source and carries no judgement.
    Where an entry is missing it was left out rather than estimated.
    The picture is largely stable, with a few entries that stand apart from the rest.
    A closer look at single entries is worthwhile before drawing conclusions.
    The charts show the same numbers as the annex, only drawn to scale.
    Changes over time often have several causes, which this report does not try to separate.
    Comparisons are most telling between entries of similar size.
    No weighting was applied, so that every entry counts the same in an average.
    Extreme values were checked against the source and kept.
    The differences are larger than one might expect at first sight.
    Further detail is found in the tables on the following pages.
    The text mentions only what stands out; everything else can be read from the tables.
    Earlier reports used other groupings and cannot be compared line by line.
    The next edition will extend the tables to further entries.
    Units are given with each table and chart.
    Two entries that look alike in one table may differ widely in the next.
    A ranking hides how close the places are; the distances deserve as much attention.
    The scale of each chart was chosen for that chart alone, so that bars of two charts cannot be compared by eye.
    Percentages are rounded to one decimal and may not add up to one hundred.
    The report leaves the interpretation to its readers.
    Several readers asked for longer series, which the source does not offer.
    Names are spelled as in the source.
    Where two values are equal, the order is that of the alphabet.
    The tables were set in small type so that related numbers stay on one page.
    Averages are plain means over the entries named.
    A range says little about the entries between its ends.
    The numbers describe; they do not explain.
    Outliers are part of the story and were left in place.
    Values that look implausible were traced back to the source and found there.
    Some entries report later than others, which blurs comparisons within a year.
    Nothing in this section depends on a forecast.
    The authors thank all colleagues who read earlier versions.
    Corrections are collected and will be printed with the next edition.
    No entry was renamed after the tables had been closed.
    The selection of entries is meant to be broad rather than complete.
    Readers in a hurry may turn to the charts first.
    The notes at the foot of each page belong to that page only.
    Most of what follows can be checked with a pencil.
    Comparable tables exist for other regions and periods.
    """.strip().splitlines()
)
