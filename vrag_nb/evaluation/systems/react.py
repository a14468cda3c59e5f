"""ReAct (Yao et al., arXiv 2210.03629): thought and action in turn, by prompt alone; page images or page text.

The environment is that of `search_r1_vl` and `search_r1`; the prompt asks for a line "Thought:" and a line "Action:"
and shows what a turn looks like. A baseline of untrained models: a policy trained on another wording is better
measured under its own.
"""

from __future__ import annotations

from vrag_nb.evaluation.systems.search_r1 import SearchR1
from vrag_nb.evaluation.systems.search_r1_vl import SearchR1VL


class ReAct(SearchR1VL):
    name = "react"
    title = "prompted, page images"
    prompt = "react"


class ReActText(SearchR1):
    name = "react_text"
    title = "prompted, pages as text"
    prompt = "react_text"
