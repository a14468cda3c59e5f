"""Search-R1-VL, the strongest baseline of VRAG-RL's tables: page images, search and answer, no crop.

`agent_no_crop` is the same environment under the evaluation's own prompt, which speaks of crops: how well a trained
agent does without them. Here the prompt does not mention them: what a model does that never had them.
"""

from __future__ import annotations

from vrag_nb.agent.environment import Environment
from vrag_nb.evaluation.baselines import Context, System, no_crop_environment


class SearchR1VL(System):
    name = "search_r1_vl"
    title = "search, page images"
    prompt = "search_only"

    def environment(self, context: Context) -> Environment:
        return no_crop_environment(context.engine, context.pages, context.settings, self.prompt)
