"""Fonts that come as Python packages, one family each, so that a bare machine draws the same bytes.

    font_file("font_manrope/Manrope-Bold.ttf")

All are under free licences: Caladea under Apache-2.0, the others under the SIL Open Font License 1.1.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PACKAGED = {  # family: regular and bold face
    "caladea": ("font_caladea/Caladea-Regular.ttf", "font_caladea/Caladea-Bold.ttf"),
    "hanken grotesk": ("font_hanken_grotesk/HankenGrotesk-Regular.otf", "font_hanken_grotesk/HankenGrotesk-Bold.otf"),
    "manrope": ("font_manrope/Manrope-Regular.ttf", "font_manrope/Manrope-Bold.ttf"),
    "source sans": ("font_source_sans_pro/SourceSansPro-Regular.ttf", "font_source_sans_pro/SourceSansPro-Bold.ttf"),
    "source serif": (
        "font_source_serif_pro/SourceSerifPro-Regular.ttf",
        "font_source_serif_pro/SourceSerifPro-Bold.ttf",
    ),
    "fredoka": ("font_fredoka_one/FredokaOne-Regular.ttf", "font_fredoka_one/FredokaOne-Regular.ttf"),
}


def font_file(name: str) -> Path:
    """Where a face of PACKAGED lies. Raises FileNotFoundError naming what to install where it does not."""
    package, file = name.split("/")
    try:
        found = Path(str(files(package) / "files" / file))
    except ModuleNotFoundError:
        found = Path(file)
    if not found.is_file():
        raise FileNotFoundError(f"no font {name}: install the package {package.replace('_', '-')} (`make env` does)")
    return found
