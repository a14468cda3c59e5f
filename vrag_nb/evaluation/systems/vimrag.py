"""VimRAG (arXiv 2602.12735) and the rows of its memory ablation, as systems beside VRAG's.

    vimrag_summary      one running summary
    vimrag_graph        the graph as text
    vimrag_multimodal   and the kept images, at equal shares of the pixels
    vimrag              and shares by energy

Where the evaluation is of a VimRAG agent, its settings and its prompt are taken, and only the memory differs.
Otherwise a search shows three pages, each at the evaluation's budget for an image; remembered images share as many
pixels as `TOP_K` such images have. Steps are generations, so a search and its memorising are two; there are `STEPS` of
them. A policy that was trained on VRAG's protocol alone answers nothing here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from vrag_nb.agent.memory_environment import MemoryEnvironment, default_prompt
from vrag_nb.agent.memory_session import MemorySession
from vrag_nb.agent.rollout import World
from vrag_nb.agent.task_settings import TOP_K, MemoryKind, MemorySettings
from vrag_nb.evaluation.baselines import Context, System

STEPS = 20


class VimRAG(System):
    name = "vimrag"
    title = "memory graph, pixels by energy"
    memory: ClassVar[MemoryKind] = "energy"

    def environment(self, context: Context) -> World[Any]:
        environment: World[MemorySession] = MemoryEnvironment(
            context.engine, context.pages, self._settings(context), self.template(context)
        )
        return environment

    def template(self, context: Context) -> str | Path:
        return context.memory_prompt or default_prompt(self._settings(context))

    def _settings(self, context: Context) -> MemorySettings:
        if context.memory:
            return context.memory.model_copy(update={"memory": self.memory})
        shared = context.settings
        return MemorySettings(
            memory=self.memory,
            max_steps=STEPS,
            min_pixels=shared.min_pixels,
            max_pixels=shared.max_pixels,
            factor=shared.factor,
            memory_pixels=TOP_K * shared.max_pixels,
        )


class VimRAGMultimodal(VimRAG):
    name = "vimrag_multimodal"
    title = "memory graph, equal pixels"
    memory = "multimodal"


class VimRAGGraph(VimRAG):
    name = "vimrag_graph"
    title = "memory graph as text"
    memory = "graph"


class VimRAGSummary(VimRAG):
    name = "vimrag_summary"
    title = "one running summary"
    memory = "summary"
