"""Saved pages of notebooks: formulas that a browser draws by itself, and nothing asked of a network."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from vrag_nb.offline_page import with_formulas
from vrag_nb.paths import REPOSITORY
from vrag_nb.run_pages import write_page

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def test_formulas_become_mathml_and_other_dollars_stay():
    page = with_formulas("a $x_1$ b\n\n$$\\frac{1}{2}$$\n\n`$y$` for $5 and $6", lambda text: text)
    assert page.count("<math") == 2
    assert 'display="block"' in page
    assert "<mfrac>" in page
    assert "`$y$` for $5 and $6" in page


def test_a_formula_that_cannot_be_read_stays_as_typed():
    assert with_formulas("a $x_$ b", lambda text: text) == "a <code>$x_$</code> b"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_asks_no_network_and_has_every_formula(notebook: Path, tmp_path: Path) -> None:
    write_page(notebook, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"""<(?:script|link|img)[^>]+(?:src|href)=["']https?:""", page)
    assert "vragformula" not in page
    formulas = "".join(re.findall(r"<math.*?</math>", page, re.DOTALL))
    assert not re.search(r"\\[A-Za-z]", formulas), "a command that the converter does not know"
    markdown = "\n".join(c.source for c in nbformat.read(notebook, as_version=4).cells if c.cell_type == "markdown")
    assert page.count('display="block"') == len(re.findall(r"\$\$.+?\$\$", markdown, re.DOTALL))
