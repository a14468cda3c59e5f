"""Made-up names: labels, subjects and people for synthetic decks and for the small print of real ones."""

from __future__ import annotations

import random


def listed(text: str) -> tuple[str, ...]:
    """The words of `text`."""
    return tuple(text.split())


_HEADS = listed("b br c ch cl d dr f fl g gr h j k kl l m n p pl pr qu r s sh sk sl st t th tr v w y z")
_VOWELS = listed("a e i o u ai ea ee ia io oa ou")
_TAILS = ("", "", "", "n", "r", "l", "s", "t", "m", "nd", "rn", "st", "ck", "ll", "x", "rt", "lm", "sk")
ENGLISH = listed(
    """amber anchor apple arbor arrow aspen atlas autumn badger bamboo barley basin bay beacon bear birch bison
    blossom bluff bridge brook canyon cape cedar chalk cherry cinder clover coast cobalt comet copper coral cotton
    crane creek crest crow crown crystal cypress dahlia dawn delta desert dove dune eagle east echo elder elm ember
    falcon fern field finch fjord flint forest fox frost garden garnet glacier gold granite grove gull harbor harvest
    hawk hazel heath heron hill hollow honey horizon indigo iron island ivory ivy jade jasper juniper kestrel lagoon
    lake larch laurel lava lemon lilac lily linden lion lotus lunar lynx magnet maple marble marsh meadow mesa mint
    mirror mist moon moss mountain nectar north oak oasis ocean olive onyx opal orchard orchid otter owl oxford palm
    panda pearl pebble pepper pine plain planet plum polar pond poplar prairie quail quartz rapid raven reef ridge
    river robin rocket rose ruby saffron sage salmon sand sapphire sea shadow shell silver slate snow solar sparrow
    spring spruce star steel stone storm stream summer summit sun swan teal thistle thunder tiger timber topaz tulip
    valley velvet violet walnut wave west wheat willow wind winter wolf wren zephyr"""
)
_SUBJECT_ENDS = listed(
    """Group Holdings Partners Foundation Institute Agency Council Cooperative Railways Airlines Foods Motors Energy
    Textiles University Hospital Museum Library Port Region Province Valley Islands District Basin Coast Network
    Logistics Dairy Mills Bank Insurance Media Studios Sports Club League Survey Census Programme Project Fund
    Laboratory Observatory Orchards Fisheries Forests Waterworks Telecom Pharma Robotics Ceramics Shipping"""
)
FIRST_NAMES = listed(
    """Ada Amir Anna Bela Boris Carla Chen Clara Dana David Elena Emil Farah Felix Gina Goran Hana Hugo Ines Ivan Jana
    Jonas Kaya Karl Lena Luis Mara Marco Mina Nadia Nils Olga Omar Paula Pedro Rana Rosa Samir Sara Sven Tara Theo
    Uma Vera Viktor Wanda Yara Yusuf Zara Zoe"""
)
LAST_NAMES = listed(
    """Abbott Adeyemi Almeida Andersen Banerjee Becker Bianchi Castro Cohen Costa Dubois Eriksen Farkas Fischer Garcia
    Gomez Haddad Hansen Horvat Ibrahim Jansen Johansson Kaplan Keller Kim Kowalski Larsen Leclerc Lindgren Lopez
    Martens Mbeki Meyer Moreau Nakamura Novak Okafor Olsen Park Patel Petrov Quinn Ramos Rossi Sato Schmidt Silva
    Sokolov Tanaka Torres Ueda Vargas Weber Wong Yilmaz Zhang Zimmer"""
)
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def invented(rng: random.Random) -> str:
    """A pronounceable word nobody has seen: "Brealorn"."""
    syllables = rng.choice([2, 2, 2, 3])
    parts = [rng.choice(_HEADS) + rng.choice(_VOWELS) for _ in range(syllables)]
    return ("".join(parts) + rng.choice(_TAILS)).capitalize()


def random_label(rng: random.Random) -> str:
    """A row's or a group's name: one or two words, sometimes with a number or a letter."""
    kind = rng.random()
    word = invented(rng) if rng.random() < 0.5 else rng.choice(ENGLISH).capitalize()
    if kind < 0.62:
        return word
    if kind < 0.82:
        return f"{word} {rng.choice(ENGLISH).capitalize()}"
    if kind < 0.9:
        return f"{word} {rng.randint(1, 99)}"
    return f"{word} {rng.choice('ABCDEFGHJKLMNPRSTUVWXYZ')}"


def random_phrase(rng: random.Random) -> str:
    """A subject: "Amber Valley", "Trealorn Foods"."""
    word = invented(rng) if rng.random() < 0.6 else rng.choice(ENGLISH).capitalize()
    end = rng.choice(_SUBJECT_ENDS) if rng.random() < 0.75 else invented(rng)
    return f"{word} {end}"


def person(rng: random.Random) -> str:
    """A full name."""
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def day(rng: random.Random) -> str:
    """A date as decks print it."""
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(2012, 2025)}"
