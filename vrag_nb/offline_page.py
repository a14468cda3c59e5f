r"""Formulas of notebooks as MathML, which browsers draw by themselves: a saved page needs no MathJax from a network.

with_formulas(r"the share $\mu_v$", markdown2html)      # '<p>the share <math ...>...</math></p>'
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

from jinja2 import DictLoader, pass_context
from nbconvert import HTMLExporter

# code, where a dollar is a dollar; $$ ... $$; $ ... $ on one line, without spaces inside the dollars
_PIECES = re.compile(
    r"(?P<code>```.*?```|`[^`\n]*`)|\$\$(?P<block>.+?)\$\$|(?<![\\$])\$(?!\s)(?P<inline>[^$\n]+(?:\n[^$\n]+)*?)(?<![\s\\])\$",
    re.DOTALL,
)
_PLACE = "vragformula{}end"


def with_formulas(source: str, to_html: Callable[[str], str]) -> str:
    """Markdown as `to_html` makes it, every formula of it as MathML; one that cannot be read stays as it was typed."""
    formulas: list[str] = []

    def taken_out(piece: re.Match[str]) -> str:
        if piece["code"]:
            return piece["code"]
        formulas.append(_mathml(piece))
        place = _PLACE.format(len(formulas) - 1)
        return f"\n\n{place}\n\n" if piece["block"] else place

    page = to_html(_PIECES.sub(taken_out, source))
    for number, formula in enumerate(formulas):
        page = page.replace(_PLACE.format(number), formula)
    return page


def _mathml(piece: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    formula, display = (piece["block"], "block") if piece["block"] else (piece["inline"], "inline")
    try:
        return str(convert(formula.strip(), display=display))
    except Exception:  # its errors have no common class, and a formula must not cost the page
        return f"<code>{html.escape(piece[0])}</code>"


# JupyterLab's looks without the scripts that nbconvert would fetch for formulas, diagrams and widgets; what is wider
# than the page is scrolled or made smaller, not cut
_TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}{{ super() }}
<style>.jp-OutputArea-output { overflow-x: auto } .jp-OutputArea-output img { max-width: 100%; height: auto }</style>
{%- endblock -%}
"""


class PageExporter(HTMLExporter):
    """nbconvert's page of a notebook, which asks no network for anything."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            template_name="lab",
            template_file="offline.html.j2",
            extra_loaders=[DictLoader({"offline.html.j2": _TEMPLATE})],
            exclude_input_prompt=True,
            exclude_output_prompt=True,
            **options,
        )

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        return with_formulas(source, lambda text: str(HTMLExporter.markdown2html(self, context, text)))
