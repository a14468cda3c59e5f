"""Layout families: fonts, palettes and the arrangement of blocks, split like the tables.

A family belongs to one split for ever; a test deck is drawn in a family (and from a table) that no training deck used.
A deck gets a `Style`: one palette and one set of fonts of its family, chosen by the deck's random generator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from vrag_nb.documents.decks.canvas import Colour, Face, face, mix, rgb
from vrag_nb.documents.packaged_fonts import PACKAGED

SLIDE = (720.0, 405.0)
A4 = (595.0, 842.0)


@dataclass(frozen=True)
class Palette:
    """Colours of one deck. `series` are the chart colours, in order, with names a reader would use."""

    name: str
    paper: Colour
    ink: Colour
    muted: Colour
    accent: Colour
    panel: Colour
    edge: Colour
    series: tuple[Colour, ...]
    series_names: tuple[str, ...]

    @property
    def on_accent(self) -> Colour:
        """Text colour on an accent surface."""
        light = 0.299 * self.accent[0] + 0.587 * self.accent[1] + 0.114 * self.accent[2]
        return (1.0, 1.0, 1.0) if light < 0.62 else (0.08, 0.08, 0.1)


_HUES = {
    "blue": "2f6db3", "orange": "e07b27", "green": "3a9a54", "red": "c8393f", "purple": "7d55a8", "teal": "1f9a97",
    "brown": "8c5b3f", "pink": "d5649b", "grey": "7f868e", "yellow": "dcae22", "navy": "1d3c6e", "olive": "87902c",
}  # fmt: skip


def _palette(name: str, paper: str, ink: str, accent: str, series: str, panel: str = "", edge: str = "") -> Palette:
    base, text = rgb(paper), rgb(ink)
    names = tuple(series.split())
    return Palette(
        name, base, text, mix(text, base, 0.35), rgb(accent),
        rgb(panel) if panel else mix(base, text, 0.045), rgb(edge) if edge else mix(base, text, 0.2),
        tuple(rgb(_HUES[n]) for n in names), names,
    )  # fmt: skip


def _dark(name: str, paper: str, accent: str, series: str) -> Palette:
    names = tuple(series.split())
    base, ink = rgb(paper), rgb("f4f4f2")
    light = tuple(mix(rgb(_HUES[n]), (1.0, 1.0, 1.0), 0.25) for n in names)
    return Palette(
        name, base, ink, mix(ink, base, 0.3), rgb(accent), mix(base, ink, 0.08), mix(base, ink, 0.25), light, names
    )


FONTS: dict[str, tuple[str, str]] = {
    "helvetica": ("helv", "hebo"), "times": ("tiro", "tibo"), "noto": ("notos", "notosbo"),
    "ubuntu": ("ubuntu", "ubuntubo"), "firago": ("figo", "figbo"), "cascadia": ("cascadia", "cascadiab"),
    "dejavu": ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"), "dejavu serif": ("DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
    "stix": ("STIXGeneral.ttf", "STIXGeneralBol.ttf"), "dejavu mono": ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    # of pretraining decks alone
    "courier": ("cour", "cobo"), "fira mono": ("fimo", "fimbo"), "ubuntu mono": ("ubuntm", "ubuntmbo"),
    "space mono": ("spacemo", "spacembo"), **PACKAGED,
}  # fmt: skip
PRETRAINING_FONTS = (
    ("manrope", "manrope"), ("source sans", "source sans"), ("source serif", "source serif"), ("caladea", "caladea"),
    ("hanken grotesk", "hanken grotesk"), ("fredoka", "manrope"), ("source serif", "source sans"),
    ("space mono", "hanken grotesk"), ("courier", "courier"), ("fira mono", "source sans"),
    ("ubuntu mono", "ubuntu mono"),
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How the decks of one family arrange a page.

    title: where the title stands: plain (top left), band (on a filled strip), underline, centre, sidebar (in a filled
    column on the left), rail (a thin stripe along the left edge), lower (title under a running header); and, for
    pretraining alone, aside (in a column on the right, `column` of the width) and foot (under the content).
    panel: box, filled, rule (a line under the panel's title), bare. side: where the chart goes beside the text, and
    panel_share how much of the width it takes (from, to). paper: width and height of a page. margins: left empty at the
    left, top, right and bottom of it, beyond what every page leaves; coloured if they are `filled`, and so is the
    column of a title aside. All in points. cut: where pages with panels side by side are cut, as a share of the width.
    flipped: wide panels stand under their bullets.
    """

    name: str
    split: str
    kind: str  # slides | report
    fonts: tuple[tuple[str, str], ...]  # (heading, body) keys of FONTS
    palettes: tuple[Palette, ...]
    title: str
    panel: str
    side: str
    bullet: str
    footer: str  # left | right | centre | split
    table: str  # zebra | rules | boxed | plain
    panel_share: tuple[float, float] = (0.47, 0.54)
    paper: tuple[float, float] | None = None  # SLIDE or A4, by kind
    margins: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    filled: bool = False
    column: float = 0.28
    cut: float = 0.5
    flipped: bool = False

    @property
    def page_size(self) -> tuple[float, float]:
        """Width and height of a page in points."""
        return self.paper or (A4 if self.kind == "report" else SLIDE)


_WHITE = "ffffff"
FAMILIES: tuple[Family, ...] = (
    Family(
        "plain", "train", "slides", (("helvetica", "helvetica"), ("dejavu", "dejavu"), ("noto", "noto")),
        (_palette("paper blue", _WHITE, "1b1f27", "2f6db3", "blue orange green red purple teal"),
         _palette("paper red", "fbfaf7", "262220", "b23a34", "red navy yellow teal brown grey"),
         _palette("paper green", _WHITE, "16241c", "2c7d4f", "green orange blue brown pink grey"),
         _dark("night", "1b2230", "6fb1ff", "blue orange green pink yellow teal")),
        "plain", "box", "right", "•", "split", "zebra",
    ),
    Family(
        "band", "train", "slides", (("ubuntu", "ubuntu"), ("helvetica", "helvetica"), ("noto", "noto")),
        (_palette("band navy", _WHITE, "1c2430", "1d3c6e", "navy orange teal red yellow grey"),
         _palette("band teal", "fafcfc", "12282a", "17797a", "teal purple orange navy pink olive"),
         _palette("band plum", _WHITE, "251b2b", "63407f", "purple yellow green red blue grey")),
        "band", "filled", "left", "–", "left", "rules",
    ),
    Family(
        "underline", "train", "slides", (("dejavu serif", "dejavu"), ("stix", "helvetica"), ("times", "times")),
        (_palette("cream", "fdf9f0", "2a2118", "9a5b22", "brown teal orange navy olive red"),
         _palette("ink", _WHITE, "111111", "333333", "navy red grey green orange purple"),
         _dark("slate", "263238", "ffca5f", "yellow teal orange blue pink green")),
        "underline", "rule", "right", "•", "right", "plain",
    ),
    Family(
        "centre", "train", "slides", (("noto", "noto"), ("ubuntu", "noto"), ("dejavu", "dejavu")),
        (_palette("soft grey", "f3f4f6", "20242b", "3f6c9b", "blue red green orange purple grey", _WHITE),
         _palette("soft sand", "f6f1e7", "2b2620", "b5651d", "orange green navy red teal brown", "fffdf8"),
         _dark("deep green", "10302a", "9fe0b0", "green orange yellow blue pink teal")),
        "centre", "filled", "left", "▪", "centre", "zebra",
    ),
    Family(
        "rail", "train", "slides", (("cascadia", "noto"), ("dejavu mono", "dejavu"), ("helvetica", "helvetica")),
        (_palette("rail orange", _WHITE, "22252b", "d9691e", "orange blue grey green purple red"),
         _palette("rail olive", "fcfcf8", "24261c", "6f7a1f", "olive brown blue red teal orange"),
         _dark("carbon", "1e1e1e", "ff8f5a", "orange teal yellow pink blue green")),
        "rail", "bare", "right", "–", "split", "boxed",
    ),
    Family(
        "journal", "train", "report", (("times", "times"), ("stix", "stix"), ("helvetica", "times")),
        (_palette("journal", _WHITE, "141414", "22406b", "navy orange grey green red teal"),
         _palette("journal red", _WHITE, "171412", "8d2b2b", "red grey navy olive orange teal")),
        "underline", "rule", "right", "•", "centre", "rules",
    ),
    Family(
        "brief", "train", "report", (("noto", "noto"), ("dejavu", "dejavu"), ("ubuntu", "helvetica")),
        (_palette("brief blue", _WHITE, "1d2430", "2f6db3", "blue orange green purple red grey"),
         _palette("brief green", "fdfdfb", "1b2a20", "2c7d4f", "green brown blue yellow red teal")),
        "band", "filled", "left", "•", "split", "zebra",
    ),
    Family(
        "lower", "dev", "slides", (("helvetica", "noto"), ("dejavu serif", "dejavu serif")),
        (_palette("lower blue", _WHITE, "1a2029", "24598f", "blue yellow red teal grey purple"),
         _palette("lower rose", "fffafa", "2b1d22", "a8436a", "pink navy green orange grey teal")),
        "lower", "rule", "left", "•", "right", "rules",
    ),
    Family(
        "sidebar", "test", "slides", (("firago", "firago"), ("helvetica", "firago")),
        (_palette("sidebar navy", _WHITE, "1b2230", "213f66", "teal orange blue red purple grey"),
         _palette("sidebar forest", "fbfbf9", "1d2620", "2d5a3f", "green yellow navy red brown teal"),
         _palette("sidebar wine", _WHITE, "2a1c20", "74283c", "red teal yellow blue grey olive")),
        "sidebar", "box", "right", "•", "right", "plain",
    ),
    Family(
        "gazette", "test", "report", (("dejavu serif", "times"), ("firago", "noto")),
        (_palette("gazette", _WHITE, "181818", "3c3c3c", "grey blue orange green red purple"),
         _palette("gazette teal", _WHITE, "14201f", "146c6b", "teal brown navy red olive orange")),
        "centre", "box", "right", "–", "right", "boxed",
    ),
)  # fmt: skip


@dataclass
class Style:
    """A family with its choices made, for one deck."""

    family: Family
    palette: Palette
    heading: Face
    heading_bold: Face
    body: Face
    bold: Face
    title_size: float = 26.0
    bullet_size: float = 17.0
    radius: float = 0.0
    fonts: tuple[str, str] = field(default=("", ""))

    @property
    def report(self) -> bool:
        return self.family.kind == "report"


def families(split: str) -> tuple[Family, ...]:
    """The families of a split."""
    return tuple(family for family in FAMILIES if family.split == split)


def mixed_family(rng: random.Random) -> Family:
    """A training family with its details (fonts, colours, panels, tables, sides) borrowed from the others.

    For pretraining, which wants more variety than the corpus has families: half of the time its fonts are others than
    theirs, and five times in six its pages are arranged otherwise too. A title in a column on the left, which test
    decks have, is never drawn.
    """
    base = rng.choice(families("train"))
    kin = [family for family in families("train") if family.kind == base.kind]
    borrowed = {
        name: getattr(rng.choice(kin), name)
        for name in ("fonts", "palettes", "panel", "side", "bullet", "footer", "table")
    }
    if rng.random() < 0.5:
        borrowed["fonts"] = (*rng.sample(PRETRAINING_FONTS, 3), *borrowed["fonts"][:1])
    family = replace(base, **borrowed)
    return _rearranged(rng, family) if rng.random() < 5 / 6 else family


def _rearranged(rng: random.Random, family: Family) -> Family:
    """The family on paper of another shape, with other margins and shares, slides with their titles elsewhere.

    So that a panel may stand anywhere: a model that has met a few arrangements only writes one of their boxes.
    """
    width, height = family.page_size
    title = rng.choice([family.title, "aside", "foot"]) if family.kind == "slides" else family.title
    lowest, highest = (0.9, 1.02) if family.kind == "report" else (1.0, 1.33)
    paper = (width, round(height * rng.uniform(lowest, highest)))
    widest = 0.1 if title == "aside" else 0.2 if family.kind == "report" else 0.32
    sides, ends = rng.uniform(0, width * widest), rng.uniform(0, paper[1] * 0.15)
    left, top = rng.random(), rng.random()
    middle = rng.uniform(0.5, 0.64) if title == "aside" else rng.uniform(0.42, 0.64)
    return replace(
        family,
        title=title,
        paper=paper,
        margins=(sides * left, ends * top, sides * (1 - left), ends * (1 - top)),
        filled=rng.random() < 0.5,
        column=rng.uniform(0.2, 0.34),
        cut=rng.uniform(0.4, 0.6),
        flipped=rng.random() < 0.5,
        panel_share=(middle - 0.03, middle + 0.03),
    )


def choose_style(rng: random.Random, family: Family, texts: str) -> Style:
    """Draw the deck's palette and fonts; fonts that lack a character of `texts` are passed over."""
    texts += family.bullet
    pairs = list(family.fonts)
    rng.shuffle(pairs)
    able = [p for p in pairs if all(face(f).has(texts) for key in p for f in FONTS[key])]
    pair = (able or [("dejavu", "dejavu")])[0]
    heading, body = FONTS[pair[0]], FONTS[pair[1]]
    return Style(
        family, rng.choice(family.palettes), face(heading[0]), face(heading[1]), face(body[0]), face(body[1]),
        rng.choice([23.0, 24.0, 26.0, 28.0]), rng.choice([16.0, 17.0, 18.0]), rng.choice([0.0, 0.0, 4.0, 7.0]), pair,
    )  # fmt: skip
