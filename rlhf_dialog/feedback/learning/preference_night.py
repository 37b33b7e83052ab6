"""A night by `method: reward_model_ppo`: preference models on the feedback, then on-policy PPO with them from the champion.

- **The preference models see all feedback of the snapshot**, not only the replayed share, after the same filters and cap. An edit
  or a choice is a pair. A liked and a disliked answer to the same prompt are one too; where prompts differ, a liked answer is
  compared with disliked ones of the same kind to other prompts, as the gate does: each side keeps its own prompt.
- **They start from the first version each night**, one for each seed, so that nothing of a refused night is left in them. Their
  score is the mean less the variance among them (`combine: uncertainty`).
- **Old chats are only prompts here**: PPO trains on answers that it samples itself. The KL penalty is to the first version.
- **A night continues its parent's moments**: those of Adam go into PPO's optimizer and back into the learner's.

Everything lies in `preference/` of the bot's folder until the night is over. A model there is whole or absent, and PPO goes on
from its own checkpoints, so a killed night ends as an uninterrupted one.
"""

import json
import logging
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel

from rlhf_dialog.atomic_files import atomic_folder, remove_whole, replace_json, replace_text, write_json
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning.learner import Learner, Night, Watch
from rlhf_dialog.feedback.store.bot import WORK
from rlhf_dialog.feedback.store.examples import Example, RatedAnswer, training_set
from rlhf_dialog.json_files import json_or, read_json
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.runs.data_source import Parts
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service
from rlhf_dialog.terminal import quieter
from rlhf_dialog.training.supervised.preference_model import PreferenceModel
from rlhf_dialog.training.supervised.settings import PreferenceConfig

RIVALS = 2  # disliked answers to other prompts that each liked answer is compared with, and the other way round
CLIP = 3.0  # deviations of the preference models' score


def train(night: Night, watch: Watch) -> dict[str, float]:
    """Train the learner's policy; returns the metrics of the night. Raises UserError for settings that do not fit, RunStopped."""
    if night.settings.use_lora:
        raise UserError("use_lora: true, but method: reward_model_ppo trains all weights; set one of them otherwise")
    draw, snapshot = random.Random(f"{night.settings.seed} {night.learner.num_nights}"), night.snapshot
    whole = training_set(snapshot.examples, night.settings, (), draw)  # all of the snapshot, by the filters and the cap
    snapshot.training = replace(whole, num_new=snapshot.training.num_new, seen=snapshot.training.seen)
    if "ppo" in night.state:  # a kill came after the training
        return dict(night.state["ppo"])
    folder = _work_folder(night)
    night.save({})
    members = [_member(night, folder, number) for number in range(night.settings.reward_members)]
    agent = NightPPO(ppo_config(night, folder, members), night.learner, watch)
    with quieter("rlhf_dialog", logging.WARNING):  # what a run says of its folder and agent concerns nobody here
        agent.train()
    _take_over(night.learner, agent)
    metrics = _metrics(folder, members)
    night.save({"ppo": metrics})
    remove_whole(folder)
    return metrics


def _work_folder(night: Night) -> Path:
    """The folder of this night's work; what another night has left there is removed."""
    folder, stamp = night.bot.folder / WORK, {"night": night.snapshot.fingerprint}
    path = folder / "night.json"
    if folder.is_dir() and json_or(path, None) != stamp:
        remove_whole(folder)
    replace_json(path, stamp)
    return folder


# -- the preference models


def preference_rows(examples: Sequence[Example], context_size: int, draw: random.Random) -> list[dict[str, list[str]]]:
    """Rows `chosen` and `rejected`, each the turns of its prompt and the reply.

    Edits and choices; liked and disliked answers to the same prompt; and each answer with others of its kind, drawn by `draw`.
    """
    rows = []
    labelled: dict[str, dict[bool, list[list[str]]]] = defaultdict(lambda: {True: [], False: []})
    for example in examples:
        prompt = list(example.prompt_turns[-context_size:])
        if isinstance(example, RatedAnswer):
            labelled[example.kind][example.liked].append([*prompt, example.response])
        else:
            rows.append(([*prompt, example.chosen], [*prompt, example.rejected]))
    for kind in sorted(labelled):
        rows += _compare_answers(labelled[kind][True], labelled[kind][False], draw)
    different = dict.fromkeys((tuple(chosen), tuple(rejected)) for chosen, rejected in rows if chosen != rejected)
    return [{"chosen": list(chosen), "rejected": list(rejected)} for chosen, rejected in different]


def _compare_answers(
    liked: list[list[str]], disliked: list[list[str]], draw: random.Random
) -> list[tuple[list[str], list[str]]]:
    """Pairs of one kind: all of the same prompt, and `RIVALS` shuffled passes over the longer list against the shorter one."""
    if not liked or not disliked:
        return []
    same = [(one, other) for one in liked for other in disliked if one[:-1] == other[:-1]]
    count = RIVALS * max(len(liked), len(disliked))
    return same + list(zip(_passes(liked, count, draw), _passes(disliked, count, draw), strict=True))


def _passes(some: list[list[str]], count: int, draw: random.Random) -> list[list[str]]:
    found: list[list[str]] = []
    while len(found) < count:
        found += draw.sample(some, len(some))
    return found[:count]


def _member(night: Night, folder: Path, number: int) -> Path:
    """The preference model of this number, which is trained unless it is there. Raises UserError as its training does."""
    target, settings = folder / f"member_{number}", night.settings
    if target.is_dir():
        return target
    pairs = folder / "pairs.jsonl"
    context_size = night.learner.agent.settings.context_size
    rows = preference_rows(night.snapshot.training.all, context_size, random.Random(night_seed(night)))
    if not rows:
        raise UserError(
            "method: reward_model_ppo needs an edit, a choice, or a liked and a disliked answer of one kind"
        )
    replace_text(pairs, "".join(json.dumps(row) + "\n" for row in rows))
    config = PreferenceConfig(
        data_path=str(pairs),
        output=str(target),
        model_path=str(night.bot.agent_folder(night.bot.first())),
        learning_rate=settings.reward_learning_rate,
        epochs=settings.reward_epochs,
        batch_size=settings.batch_size,
        num_samples=0,
        seed=(night_seed(night) + number) % 2**32,
        device=settings.device,
        precision=settings.precision,
        use_amp=settings.use_amp,
    )
    with atomic_folder(target) as draft:
        report = PreferenceModel(config, draft, lambda line: None).train()
        write_json(draft / "report.json", report)
    return target


def night_seed(night: Night) -> int:
    """A seed that follows from the state in which the night began."""
    return int(night.state["start"][:8], 16)


# -- PPO


class NightService(Service):
    """Lets a PPO run begin with the learner's moments, and shows its progress."""

    def __init__(self, learner: Learner, watch: Watch):
        self.learner, self.watch = learner, watch

    def begin(self, run: PPORun) -> None:
        if run.iteration == 0:
            _copy_moments(self.learner.optimizer, run.trainer.optimizers["policy"])

    def after_iteration(self, run: PPORun, metrics: Metrics) -> Metrics:
        self.watch(run.iteration, run.config.max_iterations or run.iteration)
        return {}


class NightPPO(PPOAgent):
    """The PPO run of a night, which begins with the moments of its parent, or goes on where it was."""

    def __init__(self, config: Config, learner: Learner, watch: Watch):
        super().__init__(config, resume="auto")
        self.night_service = NightService(learner, watch)

    def build_services(self, parts: Parts) -> tuple[Service, ...]:
        return (*super().build_services(parts), self.night_service)


def ppo_config(night: Night, folder: Path, members: Sequence[Path]) -> Config:
    """The configuration of the PPO run, from the bot's settings and the way its agent answers."""
    settings, agent = night.settings, night.learner.agent.settings
    size = agent.context_size
    prompts = dict.fromkeys(one.prompt_turns[-size:] for one in night.snapshot.training.all)
    replace_text(folder / "prompts.jsonl", "".join(json.dumps({"prompt": list(one)}) + "\n" for one in prompts))
    models = {"members": [str(one) for one in members], "combine": "uncertainty", "clip": CLIP}
    models |= {"uncertainty_coef": settings.uncertainty_coef}
    parts = [
        {"id": "RewardModel", "weight": 1.0, "args": models},
        {"id": "LengthHold", "weight": settings.length_weight, "args": {}},
    ]
    positions = night.learner.encoder.positions
    # as the agent answers people
    room = agent.max_prompt_length if positions is None else positions - agent.max_new_tokens
    return Config(
        **agent.model_dump(exclude_unset=True)
        | {"max_prompt_length": min(agent.max_prompt_length, room), "precision": settings.precision},
        env={"args": {"data_path": str(folder / "prompts.jsonl")}},
        model_path=str(night.bot.agent_folder(night.snapshot.champion)),
        ref_model=str(night.bot.agent_folder(night.bot.first())),
        reward_class={"id": "CompositeReward", "args": {"parts": parts}},
        run_dir=str(folder),
        experiment_name="ppo",
        max_iterations=settings.ppo_iterations,
        rollout_batch_size=settings.ppo_responses,
        advantage_estimator="rloo",
        gamma=1.0,
        entropy_coef=0.0,
        ppo_epoch=1,
        num_mini_batch=settings.ppo_minibatches,
        per_device_microbatch_size=settings.per_device_microbatch_size,
        lr=settings.ppo_learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        kl_coef=settings.ppo_kl_coef,
        kl_rate=0.0,
        save_interval=1,
        keep_checkpoints=1,
        sample_interval=0,
        ledger=False,
        report=False,
        log_interval=settings.ppo_iterations,
        use_rich_handler=False,
        seed=night_seed(night),
        device=settings.device,
        use_amp=settings.use_amp,
    )


def _copy_moments(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """Continue `source`'s moments in `target`, which has the same parameters in the same order, and keeps its own settings."""
    state, own = source.state_dict(), target.state_dict()
    target.load_state_dict({"state": state["state"], "param_groups": own["param_groups"]})


def _take_over(learner: Learner, agent: PPOAgent) -> None:
    """Give the learner the weights and moments of the PPO run."""
    assert agent.trainer is not None
    policy = agent.trainer.models.policy
    learner.policy.lm.load_state_dict(policy.lm.state_dict())
    _copy_moments(agent.trainer.optimizers["policy"], learner.optimizer)
    config = agent.config
    learner.num_steps += int(config.max_iterations or 0) * config.num_mini_batch


class PreferenceAccuracy(BaseModel):
    """How often a preference model was right."""

    mean: float


class PreferenceReport(BaseModel):
    """What the night reads of the report of a preference model."""

    num_train_pairs: int
    accuracy: PreferenceAccuracy


def _metrics(folder: Path, members: Sequence[Path]) -> dict[str, float]:
    """The mean accuracy of the preference models on the pairs that they held out, and score and KL of PPO's rollouts."""
    again = f"; remove {folder} and start the night again"
    reports = [read_json(one / "report.json", end=again, shape=PreferenceReport) for one in members]
    rows = read_metrics(folder / "ppo" / "metrics.jsonl")
    accuracy = sum(report["accuracy"]["mean"] for report in reports) / len(reports)
    found = {"pairs": reports[0]["num_train_pairs"], "accuracy": accuracy}
    found |= {"first_score": rows[0]["objective/score"], "last_score": rows[-1]["objective/score"]}
    return found | {"kl": rows[-1]["objective/kl"], "words": rows[-1].get("reward/length_hold/words", 0.0)}
