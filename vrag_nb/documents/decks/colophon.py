"""Statements made up for a deck: who wrote it, when, what comes next, how the numbers were gathered."""

from __future__ import annotations

import random

from vrag_nb.documents.decks.blocks import Statement
from vrag_nb.documents.decks.typeset import hold
from vrag_nb.documents.decks.words import day, person

CITIES = tuple(
    """Lisbon Oslo Vienna Kyoto Nairobi Lima Quito Hanoi Tunis Riga Turin Porto Bergen Leeds Graz Basel Ghent Malmo
    Utrecht Bristol Denver Austin Ottawa Halifax Perth Hobart Dakar Accra Doha Muscat Busan Osaka Pune Cusco
    Salta Bogota Recife Split Sofia Tallinn""".split()
)

Form = tuple[str, str, str, str]  # sentence, answer, question, words that find the page


def _made(form: Form) -> Statement:
    text, answer, ask, hint = form
    asks = ("In the {deck} deck, " + f"{ask}?", f"{ask[0].upper()}{ask[1:]}" + " according to the {deck} deck?")
    return Statement(text.format(a=hold(answer)), answer, asks, hint)


def front_matter(rng: random.Random) -> list[Statement]:
    """Author, date and place for the first page."""
    who, when, where = person(rng), day(rng), rng.choice(CITIES)
    forms: list[Form] = [
        rng.choice([
            ("Prepared by {a}", who, "who prepared the presentation", "prepared by"),
            ("Presented by {a}", who, "who is named as the presenter", "presented by"),
        ]),
        rng.choice([
            ("{a}", when, "what date is on the title page", "title page date"),
            ("Issued on {a}", when, "on what date was the document issued", "issued on"),
        ]),
        ("Location: {a}", where, "what location is on the title page", "location"),
    ]  # fmt: skip
    return [_made(form) for form in forms[: rng.choice([2, 3, 3])]]


def next_steps(rng: random.Random) -> list[Statement]:
    """Bullets for the last page."""
    names = [person(rng) for _ in range(4)]
    days = [day(rng) for _ in range(3)]
    forms: list[Form] = [
        ("{a} prepares the next edition.", names[0], "who prepares the next edition", "next steps next edition"),
        ("The next review takes place on {a}.", days[0], "when does the next review take place", "next review"),
        ("{a} collects comments.", names[1], "who collects comments", "next steps comments"),
        ("Comments are welcome until {a}.", days[1], "until when are comments welcome", "comments until"),
        ("The follow-up meeting is in {a}.", rng.choice(CITIES), "where is the follow-up meeting", "follow-up meeting"),
        ("{a} will check open figures.", names[2], "who will check open figures", "open figures"),
        ("The archive copy goes to {a}.", names[3], "who receives the archive copy", "archive copy"),
    ]
    return [_made(form) for form in rng.sample(forms, 4)]


def method(rng: random.Random) -> list[Statement]:
    """How the numbers came about."""
    names = [person(rng) for _ in range(3)]
    forms: list[Form] = [
        ("The tables were compiled by {a}.", names[0], "who compiled the tables", "method compiled"),
        ("Entries were checked twice in {a}.", rng.choice(CITIES), "where were entries checked twice", "method checked"),
        ("The data set was frozen on {a}.", day(rng), "on what date was the data set frozen", "data set frozen"),
        ("{a} records were removed as duplicates.", f"{rng.randint(2, 999)}",
         "how many records were removed as duplicates", "duplicates removed"),
        ("Rounding follows rule {a}.", f"{rng.choice('ABCDEFR')}{rng.randint(2, 99)}", "which rule does rounding follow",
         "rounding rule"),
        ("The response rate was {a}.", f"{rng.randint(31, 98)}.{rng.randint(0, 9)}%", "what was the response rate",
         "response rate"),
        ("{a} reviewed the method.", names[1], "who reviewed the method", "method reviewed"),
        ("The work cost {a} working hours.", f"{rng.randint(40, 2400):,}", "how many working hours did the work cost",
         "working hours"),
        ("Missing values: {a} of all cells.", f"0.{rng.randint(1, 9)}%", "what share of all cells is missing",
         "missing values"),
        ("The translation was done by {a}.", names[2], "who did the translation", "translation"),
    ]  # fmt: skip
    return [_made(form) for form in rng.sample(forms, len(forms))]
