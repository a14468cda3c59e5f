"""Search-R1 (arXiv 2503.09516): the loop without images. A search returns a page's text layer; there is no crop.

The trained Search-R1 is this system with its own checkpoint as the policy. The papers give it a text retriever: choose
one for the profile (`retriever: {kind: bm25}`) to measure that; by default it shares the engine of the other systems,
so that only what is shown differs.
"""

from __future__ import annotations

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.page_text import PageTextObserver
from vrag_nb.evaluation.baselines import Context, System, no_crop_environment


class SearchR1(System):
    name = "search_r1"
    title = "search, pages as text"
    prompt = "search_text"

    def environment(self, context: Context) -> Environment:
        observers = {"search": PageTextObserver(context.pages, context.settings)}
        return no_crop_environment(context.engine, context.pages, context.settings, self.prompt, observers)
