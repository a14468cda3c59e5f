"""Search-R1-VL, the strongest baseline of VRAG-RL's tables: page images, search and answer, no crop.

`agent_no_crop` is the same environment under the evaluation's own prompt, which speaks of crops: how well a trained
agent does without them. Here the prompt does not mention them: what a model does that never had them.
"""

from __future__ import annotations

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.observers import refuse_crop
from vrag_nb.evaluation.baselines import NO_CROP_FORMATS, Context, System


class SearchR1VL(System):
    name = "search_r1_vl"
    title = "search, page images"
    prompt = "search_only"

    def environment(self, context: Context) -> Environment:
        settings = context.settings.model_copy(update={"formats": NO_CROP_FORMATS})
        return Environment(context.engine, context.pages, settings, self.prompt, observers={"bbox": refuse_crop})
