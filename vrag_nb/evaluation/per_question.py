"""What one question took and saw: the numbers that tables average.

conduct(trajectory, ready_made=1)                         # turns, crops, tokens, seconds, invalid actions, ...
pages_seen(["deck_3"], ["deck_1", "deck_3"])              # how much of the gold was shown
gold_by_turn(trajectory, ["deck_3", "deck_5"])            # [0.0, 0.5, 0.5, 1.0]
"""

from __future__ import annotations

from collections.abc import Sequence

from vrag_nb.agent.trajectory import Trajectory


def conduct(trajectory: Trajectory, ready_made: int = 0) -> dict[str, float]:
    """How one question was worked on; the first `ready_made` turns are not the model's and count for nothing.

    turns, searches, crops: how many. invalid_action_rate: share of what the model was asked to write. forced_rate,
    finish_rate: 1 where the extra last turn was reached, where it ended with an answer. image_tokens: of everything
    shown. generated_tokens; longest_prompt: tokens of the longest context; both left out where the policy does not say.
    cut_off_rate: share of what the model wrote that the token limit ended, left out where the record does not say.
    seconds: from start to end, while other questions were in flight.
    """
    turns = trajectory.turns[ready_made:]
    kinds = [turn.taken for turn in turns]
    found = {
        "turns": float(len(turns)),
        "searches": float(kinds.count("search")),
        "crops": float(kinds.count("bbox")),
        "forced_rate": float(any(turn.forced for turn in turns)),
        "finish_rate": float(trajectory.status == "answered"),
        "image_tokens": float(sum(seen.image_tokens for seen in trajectory.observations)),
        "seconds": trajectory.seconds,
    }
    if trajectory.generated_tokens or not turns:
        found["generated_tokens"] = float(trajectory.generated_tokens)
    if turns:
        found["invalid_action_rate"] = sum(turn.invalid for turn in turns) / sum(turn.generations for turn in turns)
    ends = [cut_off for turn in turns for cut_off in turn.cut_off]
    if ends:
        found["cut_off_rate"] = sum(ends) / len(ends)
    prompts = [turn.prompt_tokens for turn in turns]
    prompts += [reply.prompt_tokens for turn in turns if turn.memory for reply in turn.memory.replies]
    if any(prompts):
        found["longest_prompt"] = float(max(prompts))
    return found


def pages_seen(gold: Sequence[str], shown: Sequence[str]) -> dict[str, float]:
    """pages_shown, and where there are gold pages gold_pages_seen (their share) and all_gold_seen (0 or 1)."""
    found = {"pages_shown": float(len(set(shown)))}
    if gold:
        share = len(set(gold) & set(shown)) / len(set(gold))
        found |= {"gold_pages_seen": share, "all_gold_seen": float(share == 1)}
    return found


# Measures between 0 and 1, whose intervals are exact where all are the one or the other.
SHARES = frozenset(
    {
        "accuracy",
        "gold_pages_seen",
        "all_gold_seen",
        "finish_rate",
        "forced_rate",
        "invalid_action_rate",
        "cut_off_rate",
    }
)


def gold_by_turn(trajectory: Trajectory, gold: Sequence[str]) -> list[float]:
    """The share of the gold pages shown by the end of each turn, ready-made ones included. Needs a gold page."""
    wanted, shown, shares = set(gold), set[str](), list[float]()
    for turn in trajectory.turns:
        shown |= {seen.page_id for seen in turn.observations if seen.kind == "page" and seen.page_id}
        shares.append(len(wanted & shown) / len(wanted))
    return shares
