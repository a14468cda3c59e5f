"""An evidence ledger in the manner of SCoRE (arXiv 2609.15800): what was noted is shown back every turn.

Outside its thinking and beside its action the agent may write what it has just read:

    <evidence>Revenue was 42.5 million in 2019.</evidence>

Every observation then begins with all entries so far, each with the page that was in view when it was written. Entries
that repeat an earlier one are left out; the oldest go when there are more than `MAX_ENTRIES`. Search, crop and answer
are as ever. SCoRE also drops old images from the context and trains with a reward of coverage; neither is done here,
so this is its ledger and not SCoRE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vrag_nb.agent import thinking
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.observers import Session
from vrag_nb.agent.task_settings import FORMATS
from vrag_nb.agent.trajectory import Turn, observation_message
from vrag_nb.evaluation.baselines import Context, System
from vrag_nb.records import Hit

MAX_ENTRIES = 20
MAX_CHARACTERS = 300  # of one entry
_EVIDENCE = re.compile(  # one that was not closed ends where the action begins
    r"<\s*evidence\s*>(.*?)(?:<\s*/\s*evidence\s*>|(?=<\s*(?:search|bbox|region|answer|evidence)\s*>)|\Z)",
    re.IGNORECASE | re.DOTALL,
)


def ledger(turns: Sequence[Turn]) -> list[str]:
    """The entries of a session's turns, oldest first: `{page id}: {text}`, or the text where no page was in view."""
    entries: dict[str, str] = {}  # words without case -> entry
    page: str | None = None
    for turn in turns:
        for found in _EVIDENCE.findall(thinking.outside(turn.text)):
            text = " ".join(re.sub(r"<[^>]*>", " ", found).split())[:MAX_CHARACTERS]
            if text:
                entries.setdefault(text.casefold(), f"{page}: {text}" if page else text)
        page = next((seen.page_id for seen in reversed(turn.observations) if seen.page_id), page)
    return list(entries.values())[-MAX_ENTRIES:]


class LedgerEnvironment(Environment):
    """Puts the ledger before whatever is shown; the record holds it, as a caption."""

    def observe(self, session: Session, hits: list[Hit] | Exception) -> None:
        super().observe(session, hits)
        if session.done:
            return
        turn, entries = session.turns[-1], ledger(session.turns)
        first = turn.observation
        if not entries or first is None:
            return
        lines = "".join(f"{number}. {entry}\n" for number, entry in enumerate(entries, start=1))
        turn.observation = first.model_copy(update={"caption": f"Evidence so far:\n{lines}{first.caption}"})
        session.conversation[-1] = observation_message(turn.observations, self.pages)


class EvidenceLedger(System):
    name = "evidence_ledger"
    title = "search and crop, notes shown back"
    prompt = "evidence_ledger"

    def environment(self, context: Context) -> Environment:
        formats = f"{FORMATS} <evidence>what you read</evidence> before it is kept for you."
        settings = context.settings.model_copy(update={"formats": formats})
        return LedgerEnvironment(context.engine, context.pages, settings, self.prompt)
