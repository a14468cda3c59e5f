"""The stages of learning as notebooks 04 to 06 run them: a profile in, trajectories or a checkpoint out.

    sampled = sample_experts(profile, questions, environment, run / "sampled")
    tuned = finetune(profile, run / "sampled" / "train.parquet", run / "sft")
    trainer = reinforcement(profile, tuned, run / "grpo", questions, dev_questions, environment)
    final = train(trainer)

The same on several GPUs, without a notebook:

    accelerate launch --config_file vrag_nb/learning/zero3.yaml -m vrag_nb.learning.stages sft --profile 7b --out DIR

or in two processes of a machine without any (`accelerate launch --cpu` starts one, whatever --num_processes says):

    torchrun --nproc_per_node 2 -m vrag_nb.learning.stages sft --profile nano --out data/runs/two

`sample`, `sft` and `grpo` follow each other in one folder; a stage whose forerunner is not there says so.

Every stage goes on where it was cut short. What it made is kept only for what it was made with: when the settings, the
prompt, the reward, the data or the starting weights change, the folder is put aside as `<folder>.stale` (`.stale-2` and
so on where that is taken) and the stage starts anew. One process (or one launcher's) works in a folder at a time;
another gets FolderInUseError.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import ValidationError
from transformers import TrainerCallback

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.rollout import World, rollout
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.files import write_json
from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.learning.grpo import MultiTurnGRPOTrainer, grpo_trainer
from vrag_nb.learning.grpo_settings import GRPOSettings
from vrag_nb.learning.of_profile import expert_of, reward_of
from vrag_nb.learning.rewards import BatchPart, Reward
from vrag_nb.learning.sampled_data import write_dataset, write_sharegpt
from vrag_nb.learning.sampling import Chosen, account, choose
from vrag_nb.learning.sft import SFTSettings, sft_trainer
from vrag_nb.learning.tables import TrajectoryTables
from vrag_nb.learning.trainers import FINAL, process_group, steps_made, train
from vrag_nb.loading import fingerprint_folder
from vrag_nb.paths import free_path, named_file, project_path, shown_path
from vrag_nb.profiles import Profile, ProfileError, load_profile, sample
from vrag_nb.provenance import own_code
from vrag_nb.records import Question, pages_digest

IDENTITY = "made_with.json"
Learning = TypeVar("Learning", SFTSettings, GRPOSettings)


@dataclass(frozen=True)
class Sampled:
    """All trajectories by expert, what each expert cost, and what was chosen of them."""

    trajectories: Mapping[str, list[Trajectory]]
    accounts: list[dict[str, Any]]
    chosen: Chosen


def sample_experts(
    profile: Profile,
    questions: Sequence[Question],
    environment: Environment | MemoryEnvironment,
    out: Path,
    progress: bool = True,
) -> Sampled:
    """Roll out every expert of the profile, choose, and write the data sets below `out`.

    `{expert}.jsonl`: all trajectories; `train.parquet`, `README.md` and `sharegpt/`: the chosen ones. Trajectories are
    kept for the expert that made them, however many questions are asked, samples drawn or trajectories chosen next
    time; those of another are put aside as `{expert}.stale.jsonl`. Raises ValueError when none can be learned from.
    """
    _check_learning(profile)
    if not questions:
        share = profile.taught.sampling.share
        raise ValueError(f"no question to sample with: of the training documents {share:g} are for it, so give several")
    world: World[Any] = environment
    part = profile.taught.sampling
    claim(out, {"agent": profile.agent, "seed": profile.taught.seed, **_world_identity(environment)})
    trajectories: dict[str, list[Trajectory]] = {}
    for name, expert in part.experts.items():
        asked = sample(questions, expert.questions, profile.taught.seed)
        policy = expert_of(profile, name, asked)
        told = [] if expert.policy else asked  # a planner knows the gold of its questions
        with alone_in(out):
            _claim_rollouts(out / f"{name}.jsonl", [policy.identity, policy.declared, own_code(policy), told])
            trajectories[name] = rollout(
                policy,
                world,
                asked,
                out / f"{name}.jsonl",
                concurrency=profile.evaluation.concurrency,
                samples=expert.samples,
                seed=profile.taught.seed,
                progress=progress,
            )
        policy.close()
    everything = [one for found in trajectories.values() for one in found]
    chosen = choose(everything, part.size, part.turns, profile.taught.seed)
    if not chosen.trajectories:
        why = ", ".join(f"{reason}: {count}" for reason, count in chosen.dropped.most_common())
        raise ValueError(f"none of {len(everything)} trajectories can be learned from ({why}): ask more questions")
    write_dataset(chosen.trajectories, environment.pages, out, chosen.dropped)
    write_sharegpt(chosen.trajectories, environment.pages, out / "sharegpt")
    return Sampled(trajectories, [account(name, found) for name, found in trajectories.items()], chosen)


def finetune(
    profile: Profile, data: Path, out: Path, callbacks: Sequence[TrainerCallback] = (), **changes: Any
) -> Path:
    """Fine-tune the profile's base on a sampled data set; the folder of the tuned model. `changes`: of SFTSettings."""
    settings = _sft_settings(profile, data, out, **changes)
    about = {"settings": _without_places(settings), "base": _weights(settings.checkpoint)}
    claim(out, {**about, "data": _sha256(Path(data))})
    final = out / FINAL
    if not (final / "config.json").is_file():
        train(sft_trainer(settings, callbacks))
        _free_card()
    return final


def _free_card() -> None:
    """Give back what a trainer that is over holds of a card's memory: an engine may be started on it next."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def reinforcement(
    profile: Profile,
    checkpoint: str | Path,
    out: Path,
    questions: Sequence[Question],
    dev_questions: Sequence[Question],
    environment: Environment | MemoryEnvironment,
    reward: Reward | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **changes: Any,
) -> MultiTurnGRPOTrainer:
    """A trainer for multi-turn GRPO from `checkpoint`, ready to run. `changes`: of GRPOSettings.

    A run that is there with fewer steps goes on, unless its warm-up is a share of them. Its trajectories are written to
    `out/trajectories`, and to wandb where a run of it is open.
    """
    settings = _grpo_settings(profile, checkpoint, out, **changes)
    chosen = reward or reward_of(profile)
    said = _without_places(settings)
    if settings.extendable:
        del said["steps"]
    about = {"settings": said, "base": _weights(settings.checkpoint), "questions": questions}
    about |= {"dev questions": dev_questions, **_world_identity(environment), "reward": _reward_identity(chosen)}
    claim(out, about, settings.steps)
    trainer = grpo_trainer(settings, questions, environment, chosen, dev_questions, callbacks)
    trainer.add_callback(TrajectoryTables(trainer, out / "trajectories", environment.pages))
    return trainer


def _check_learning(profile: Profile) -> None:
    """A misspelt setting of a later stage is said before hours of sampling."""
    _sft_settings(profile, Path(), Path())
    _grpo_settings(profile, "", Path())


def _sft_settings(profile: Profile, data: Path, out: Path, **changes: Any) -> SFTSettings:
    given = {"checkpoint": profile.base_checkpoint, "data": str(data), "out": str(out)}
    return _settings(SFTSettings, profile, "sft", **given, **changes)


def _grpo_settings(profile: Profile, checkpoint: str | Path, out: Path, **changes: Any) -> GRPOSettings:
    return _settings(GRPOSettings, profile, "grpo", checkpoint=str(checkpoint), out=str(out), **changes)


def _settings(kind: type[Learning], profile: Profile, field: Literal["sft", "grpo"], **given: Any) -> Learning:
    """What the profile says of a stage, with changes. Raises ProfileError naming what does not fit."""
    said = {"seed": profile.taught.seed, "frame": profile.frame, **getattr(profile.taught, field), **given}
    try:
        return kind(**said)
    except ValidationError as error:
        problem: Any = error.errors()[0]
        place = ".".join(["learning", field, *map(str, problem["loc"])])
        raise ProfileError(f"profile {profile.name}, field {place}: {problem['msg']}") from None


def claim(folder: Path, about: Mapping[str, Any], steps: int | None = None) -> None:
    """Make `folder` that of a stage made with `about`; one made with something else is put aside.

    steps: one that was trained for more is put aside too. Of several processes the first one does it, and the others
    wait until it is done. Raises FolderInUseError where a stage is at work in the folder.
    """
    processes = process_group()
    folder = Path(folder)
    digest = _digest(about)
    if processes.is_main_process:
        with alone_in(folder):
            _claim(folder, digest, steps)
    processes.wait_for_everyone()


def _claim_rollouts(rollouts: Path, about: Any) -> None:
    """Make a file that of the trajectories of an expert; those of another one are put aside."""
    made_with, digest = rollouts.with_suffix(f".{IDENTITY}"), _digest(about)
    if rollouts.is_file() and not _says(made_with, digest):
        rollouts.rename(free_path(rollouts.with_suffix(".stale.jsonl")))
    write_json(made_with, digest)


def _says(made_with: Path, digest: str) -> bool:
    return made_with.is_file() and made_with.read_text(encoding="utf-8").strip() == json.dumps(digest)


def _digest(about: Any) -> str:
    return hashlib.sha256(json.dumps(_plain(about), sort_keys=True, default=str).encode()).hexdigest()


def _claim(folder: Path, digest: str, steps: int | None) -> None:
    written = folder / IDENTITY
    another = written.is_file() and not _says(written, digest)
    if another or (steps is not None and steps_made(folder) > steps):
        folder.rename(free_path(folder.with_name(f"{folder.name}.stale")))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(written, digest)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _without_places(settings: SFTSettings | GRPOSettings) -> dict[str, Any]:
    """The settings less what teaches nothing: where it is logged, and folders and files, which count by what they
    hold, as a run may be moved."""
    return settings.model_dump(mode="json", exclude={"checkpoint", "data", "out", "report_to"})


def _weights(checkpoint: str) -> str:
    folder = project_path(checkpoint)
    return fingerprint_folder(folder) if folder.is_dir() else checkpoint


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _world_identity(environment: Environment | MemoryEnvironment) -> dict[str, Any]:
    """What an environment says and shows: its settings, its prompt, its engine, its pages, its own actions' code."""
    corpus = getattr(environment.pages, "corpus", None)  # none behind a search server
    engine = environment.engine
    ranked_by = (engine.fingerprint if engine else "") or type(engine).__name__  # a server may tell none
    seen = {"engine": ranked_by, "pages": pages_digest(corpus) if corpus else None}
    actions = [own_code(kind) for kind in getattr(environment, "actions", {}).values()]  # VimRAG's has none of its own
    return {"world": [environment.settings, environment.template], **seen, **({"actions": actions} if actions else {})}


def _reward_identity(reward: Reward) -> list[Any]:
    """Weights and gate; what a judge's verdicts follow from; the code of somebody's own parts."""
    weights = {name: weight for name, (_, weight) in reward.parts.items()}
    judges = {name: part.identity for name, (part, _) in reward.parts.items() if isinstance(part, BatchPart)}
    code = {name: digest for name, (part, _) in reward.parts.items() if (digest := own_code(part))}
    return [weights, reward.gate, *([judges] if judges else []), *([code] if code else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["sample", "sft", "grpo"])
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--file", metavar="YAML", help="another file of profiles, here or in the repository")
    parser.add_argument("--out", required=True, help="folder of all stages; each has its own below it")
    parser.add_argument("--start", help="grpo: a checkpoint to start from in place of what the stage sft made")
    arguments = parser.parse_args()
    try:
        file = named_file(arguments.file) if arguments.file else None
        profile, out = load_profile(arguments.profile, file), project_path(arguments.out)
        said = _run_stage(arguments.stage, profile, out, arguments.start)
        process_group().print(said)
    except (ValueError, FileNotFoundError, FolderInUseError) as error:
        sys.exit(f"stages {arguments.stage}: {' '.join(str(error).split())}")


def _run_stage(stage: str, profile: Profile, out: Path, start: str | None = None) -> str:
    """Run one stage in its folder below `out`, and say what came of it."""
    processes = process_group().num_processes  # first: it gives each its card, on which its retriever is then loaded
    data, tuned = out / "sampled" / "train.parquet", project_path(start) if start else out / "sft" / "final"
    if stage == "sample" and processes > 1:
        raise ValueError("sampling takes one process: start it with python -m, without a launcher")
    if stage == "sft":
        _need(data, "sample")
        return shown_path(finetune(profile, data, out / "sft"))
    if stage == "grpo":
        _need(tuned / "config.json", "sft", ", or name a checkpoint with --start")
    environment = profile.load_environment(training=True)
    for_sampling, for_learning = profile.training_questions()
    if stage == "sample":
        return f"{len(sample_experts(profile, for_sampling, environment, out / 'sampled').chosen.trajectories)} chosen"
    dev = profile.dev_questions()
    return shown_path(train(reinforcement(profile, tuned, out / "grpo", for_learning, dev, environment)))


def _need(file: Path, stage: str, otherwise: str = "") -> None:
    if not file.is_file():
        first = f"run the stage {stage!r} with the same --out first{otherwise}"
        raise FileNotFoundError(f"there is no {shown_path(file)}: {first}")


if __name__ == "__main__":
    main()
