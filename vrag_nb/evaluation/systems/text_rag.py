"""Vanilla RAG on text (the papers' "OCR" rows): one search, the best pages' text layer, answer at once.

As `vanilla_top1` and `vanilla_top3`, prompt and forced turn included, with text where these show images. The papers
read pages by OCR; here it is the PDF's own text layer, so that scanned pages are lost.
"""

from __future__ import annotations

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.page_text import PageTextObserver
from vrag_nb.evaluation.baselines import Context, VanillaTop1


class TextTop1(VanillaTop1):
    name = "text_top1"
    title = "best page as text, answer at once"

    def environment(self, context: Context) -> Environment:
        environment = super().environment(context)
        environment.observers["search"] = PageTextObserver(environment.pages, environment.settings)
        return environment


class TextTop3(TextTop1):
    name = "text_top3"
    title = "best three pages as text, answer at once"
    images = 3
