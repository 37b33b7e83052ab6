"""The quickstart's table: the agent beside baselines that need no PPO, of one run or of several seeds, and its targets.

    python -m experiments.quickstart_table
    python -m experiments.quickstart_table --seeds 3

The first one takes minutes. The second one runs all stages with the seeds 0 to 2, in folders of their own, and adds supervised
training on the reward's references; a stopped command goes on with the next stage. The exit code is 1 if a target is missed.
N prompts, S seeds.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.learned_bias import BiasTraining, learn_bias
from experiments.logit_bias_baseline import LogitBias, choose_scale, fit_bias, gain_share
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.config.loading import load_config, shipped_folder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.synthetic.pairs import attends, derives
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import Array, Interval, difference, interval, mean_statistic
from rlhf_dialog.evaluation.replies import generate_replies, nearest_replies, pick_prompts
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling, at_temperature
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.scoring import Scorer
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.terminal import Console
from scripts import quickstart

Check = tuple[str, bool, str]  # a target, whether it is met, what was measured
NUM_PROMPTS, NUM_SCALING = 400, 100
TEMPERATURES = {"1": 1.0, "0.7": 0.7, "greedy": 0.0}
BEST_OF, DRAWS, COMMONEST = 4, 8, 200
REFERENCES_RATE = 1e-3  # less than half of the SFT's
BIAS_ITERATIONS = 98  # of 32 prompts with 8 responses each: twice what PPO generates
MOST_OF_GAIN, UNSEEN_GAIN = 0.4, 0.8
SFT, AGENT, SHIFT, LEARNED, BEST, NEAREST = (
    "SFT",
    "after PPO",
    "SFT, mean logit shift",
    "SFT, learned bias",
    f"SFT, best of {BEST_OF}",
    "nearest training reply",
)
BAN, ATTENTIVE, TRUE = "SFT, best ban of a beginning", "nearest attentive reply", "true replies"
REFERENCES = "SFT on the same references"
ON_REFERENCES = Path("runs/quickstart_sft_references")
Rows = dict[str, dict[str, list[float]]]  # by system and temperature: N numbers of each measure


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=quickstart.RUN, help=f"run folder (default: {quickstart.RUN})")
    parser.add_argument("--seeds", type=int, metavar="N", help="run all stages with the seeds 0 to N-1")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/seeds"), help="where --seeds runs (default: runs/seeds)"
    )
    options = parser.parse_args(argv)
    checks: list[Check] = []
    with exit_code(debug=False) as ending:
        checks = check_seeds(options.work, options.seeds) if options.seeds else check_run(options.run)
    for name, passed, found in checks:
        print(f"{'pass' if passed else 'FAIL'}  {name}: {found}")
    return ending.code or int(not all(passed for _, passed, _ in checks))


def check_run(run: Path) -> list[Check]:
    """Measure one quickstart and its baselines; returns the targets, by means alone."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    part = next(part for part in config["reward_class"]["args"]["parts"] if part["id"] == "RewardModel")
    rows = Desk(run.parent.parent, run / "agent", config, part["args"]["model"]).rows()
    print(markdown([rows]))
    return table_checks([rows], by_interval=False)


def check_seeds(work: Path, seeds: int) -> list[Check]:
    """Run the quickstart with each seed; print the table, and return its targets, by intervals over the seeds."""
    every: list[Rows] = []
    for seed in range(seeds):
        folder = work / str(seed)
        if quickstart.run(folder, seed):
            raise UserError(f"{folder}: the quickstart with seed {seed} ended with an error; run this again to go on")
        stored = folder / quickstart.RUN / "table.json"  # goes with a run that is begun again
        if not stored.is_file():
            config = yaml.safe_load((folder / quickstart.RUN / "config.yaml").read_text(encoding="utf-8"))
            desk = Desk(folder, folder / quickstart.RUN / "agent", config, str(quickstart.PREFERENCE))
            train_on_references(folder, seed)
            replace_json(stored, desk.rows() | desk.rows_of(REFERENCES, ChatAgent.load(folder / ON_REFERENCES)))
        every.append(json.loads(stored.read_text(encoding="utf-8")))
    print(markdown(every))
    return table_checks(every, by_interval=True)


def train_on_references(folder: Path, seed: int) -> None:
    """Train the SFT model with one pass over as many true replies as PPO's reward has read.

    Raises UserError when that ends with an error.
    """
    config = yaml.safe_load((folder / quickstart.RUN / "config.yaml").read_text(encoding="utf-8"))
    episodes = read_metrics(folder / quickstart.RUN / "metrics.jsonl")[-1]["episodes"]
    number = round(episodes / config["num_responses_per_prompt"])
    stage = quickstart.Stage(
        REFERENCES,
        f"-m rlhf_dialog train-sft --config sft_quickstart.yaml --model_path {quickstart.SFT} --data_path {quickstart.DATA} "
        f"--output {ON_REFERENCES} --max_train_prompts {number} --epochs 1 --learning_rate {REFERENCES_RATE}",
        (Path("configs/sft_quickstart.yaml"), quickstart.SFT, quickstart.DATA),
        ON_REFERENCES,
    )
    if quickstart.run_stages([stage.with_seed(seed)], folder, Console(highlight=False)):
        raise UserError(f"{folder}: {REFERENCES} ended with an error; run this again to go on")


@dataclass
class Desk:
    """One quickstart in its folder, and everything that its table measures."""

    folder: Path
    agent_folder: Path
    config: dict[str, Any]
    preference: str

    def __post_init__(self) -> None:
        scored = load_config(shipped_folder("configs") / "quickstart_score.yaml").reward_class
        self.reward = self._reward(scored.args["parts"])
        self.preferences = build_reward("RewardModel", {"model": str(self.folder / self.preference)})
        self.sft, self.agent = (
            ChatAgent.load(one) for one in (self.folder / self.config["model_path"], self.agent_folder)
        )
        self.prompts = self._some("validation", NUM_PROMPTS)
        self.attentive = self._some("train", None)
        self.careless = PromptRules(context_size=1, min_context_size=1).load(
            str(self.folder / quickstart.CARELESS), "train"
        )
        self.seen = {one.prompt_turns[-1] for one in self.careless}

    def _reward(self, parts: list[dict[str, Any]]) -> BaseReward:
        """The sum of these parts, whose models lie in the folder."""
        models = ("intent_model", "model")
        found = [
            part | {"args": {k: str(self.folder / v) if k in models else v for k, v in part.get("args", {}).items()}}
            for part in parts
        ]
        return build_reward("CompositeReward", {"parts": found})

    def _some(self, split: str, number: int | None) -> list[Dialogue]:
        data = str(self.folder / self.config["env"]["args"]["data_path"])
        return pick_prompts(
            PromptRules(context_size=self.config["context_size"], min_context_size=1).load(data, split), number
        )

    def rows(self) -> Rows:
        """Every system at every temperature."""
        found = {
            NEAREST: self.measured(self.said(nearest_replies(self.prompts, self.careless))),
            ATTENTIVE: self.measured(self.said(nearest_replies(self.prompts, self.attentive))),
            TRUE: self.measured(self.said([prompt.reference or "" for prompt in self.prompts])),
        }
        shift = fit_bias(self.agent, self.sft, self.attentive[:NUM_SCALING], self.sampling("1"))
        learned = self.learned_bias()
        for name in TEMPERATURES:
            sampling = self.sampling(name)
            found[f"{SFT}, {name}"] = self.measured(self.replies(self.sft, sampling))
            found[f"{AGENT}, {name}"] = self.measured(self.replies(self.agent, sampling))
            shifted = choose_scale(shift, lambda scaled, base=sampling: self._score_of(scaled.apply_to(base)))  # type: ignore[misc]
            found[f"{SHIFT}, {name}"] = self.measured(self.replies(self.sft, shifted.apply_to(sampling)))
            found[f"{LEARNED}, {name}"] = self.measured(self.replies(self.sft, learned.apply_to(sampling)))
        for name in ("1", "0.7"):
            draws = [
                self.replies(self.sft, self.sampling(name), seed) for seed in range(DRAWS if name == "1" else BEST_OF)
            ]
            chosen = np.stack([self.preferences(some) for some in draws[:BEST_OF]]).argmax(axis=0)
            found[f"{BEST}, {name}"] = self.measured([draws[i][row] for row, i in enumerate(chosen)])
            if name == "1":
                found[f"{BAN}, {name}"] = self.measured(self.best_ban(draws))
        return found

    def learned_bias(self) -> LogitBias:
        """The bias that is learned from the run's own reward, at temperature 1."""
        reward = self._reward(self.config["reward_class"]["args"]["parts"])
        scorer = Scorer(reward, truncation_penalty=self.config.get("truncation_penalty", 0.0))
        training = BiasTraining(iterations=BIAS_ITERATIONS)
        return learn_bias(self.sft, self.attentive, scorer, self.sampling("1"), training)

    def rows_of(self, system: str, agent: ChatAgent) -> Rows:
        """Another agent at every temperature."""
        return {f"{system}, {name}": self.measured(self.replies(agent, self.sampling(name))) for name in TEMPERATURES}

    def said(self, texts: list[str]) -> list[Dialogue]:
        return [prompt.with_reply(text) for prompt, text in zip(self.prompts, texts, strict=True)]

    def sampling(self, name: str) -> Sampling:
        return at_temperature(TEMPERATURES[name], self.sft.sampling)

    def replies(self, agent: ChatAgent, sampling: Sampling, seed: int = 0) -> list[Dialogue]:
        return generate_replies(agent, self.prompts, sampling, seed).dialogues

    def _score_of(self, sampling: Sampling) -> float:
        asked = self.attentive[-NUM_SCALING:]
        return float(np.mean(self.reward(generate_replies(self.sft, asked, sampling, 0).dialogues)))

    def measured(self, replies: list[Dialogue]) -> dict[str, list[float]]:
        """N numbers each: score, whole sentences, fitting replies, whether training has the prompt word for word."""
        turns = [(one.prompt_turns[-1], one.response) for one in replies]
        return {
            "score": self.reward(replies),
            "sentence": [float(derives(reply)) for _, reply in turns],
            "fits": [float(attends(said, reply)) for said, reply in turns],
            "seen": [float(said in self.seen) for said, _ in turns],
        }

    def best_ban(self, draws: list[list[Dialogue]]) -> list[Dialogue]:
        """The SFT's replies without the one token, or beginning of up to three tokens, whose ban gives the best score.

        A banned reply is replaced by the first draw for its prompt that is not; the marks tried are the commonest of the draws.
        """
        marks = [[self._marks(one.response) for one in some] for some in draws]
        scores = np.stack([self.reward(some) for some in draws])
        commonest = [
            mark for mark, _ in Counter(m for some in marks for one in some for m in one).most_common(COMMONEST)
        ]

        def kept(mark: Any) -> list[int]:
            rows = range(len(self.prompts))
            return [next((i for i in range(len(draws)) if mark not in marks[i][row]), 0) for row in rows]

        best = max(commonest, key=lambda mark: float(np.mean([scores[i][row] for row, i in enumerate(kept(mark))])))
        return [draws[i][row] for row, i in enumerate(kept(best))]

    def _marks(self, reply: str) -> set[int | tuple[int, ...]]:
        ids = self.sft.encoder.encode_reply(reply)
        return {*ids, *(tuple(ids[:n]) for n in (1, 2, 3))}


def over(
    every: Sequence[Rows], system: str, measure: str = "score", where: Callable[[Array], Array] | None = None
) -> Any:
    """A measure over all seeds as a statistic whose units are the seeds; `where`: of `seen`, which prompts count."""
    values = [np.asarray(rows[system][measure]) for rows in every]
    if where is not None:
        values = [
            np.where(where(np.asarray(rows[system]["seen"])), one, np.nan)
            for rows, one in zip(every, values, strict=True)
        ]
    units = np.repeat(np.arange(len(every)), [len(one) for one in values]) if len(every) > 1 else None
    return replace(mean_statistic(np.concatenate(values)), units=units)


def table_checks(every: Sequence[Rows], by_interval: bool) -> list[Check]:
    """The targets: by the means of one run, or by intervals over seeds, of which no mean is on the wrong side."""

    def above(name: str, lower: str, higher: str, measure: str = "score") -> Check:
        found = difference(over(every, lower, measure), over(every, higher, measure))
        each = [difference(over([rows], lower, measure), over([rows], higher, measure))["mean"] for rows in every]
        passed = found["low"] > 0 and min(each) > 0 if by_interval else found["mean"] > 0
        return name, passed, shown(found)

    checks = []
    for name in TEMPERATURES:
        after = f"{AGENT}, {name}"
        checks.append(above(f"score above the SFT's, {name}", f"{SFT}, {name}", after))
        for system in (SHIFT, LEARNED):
            checks.append(above(f"score above {system}, {name}", f"{system}, {name}", after))
            checks.append(_share_of_gain(every, f"{system}, {name}", name))
    checks += [
        above(f"score above the best of {BEST_OF}, {name}", f"{BEST}, {name}", f"{AGENT}, {name}")
        for name in ("1", "0.7")
    ]
    checks.append(_share_of_gain(every, f"{BAN}, 1", "1"))
    if by_interval:  # the targets of one run are those of scripts/check_quickstart.py
        sentences = difference(over(every, f"{SFT}, 1", "sentence"), over(every, f"{AGENT}, 1", "sentence"))
        title = "whole sentences at temperature 1: as many as the SFT's"
        checks.append((title, sentences["high"] >= 0, shown(sentences)))
    gains = [
        over(every, f"{AGENT}, 1", where=where).point - over(every, f"{SFT}, 1", where=where).point
        for where in (lambda seen: seen == 0, lambda seen: seen == 1)
    ]
    text = f"{gains[0]:+.3f} on prompts that training has not, {gains[1]:+.3f} on the others"
    if not by_interval:  # of one seed they are shown alone
        return [*checks, ("gain on prompts that training has not, and on the others", True, text)]
    many = np.isnan(gains[1]) or gains[0] >= UNSEEN_GAIN * gains[1]
    title = f"prompts not seen in training gain at least {UNSEEN_GAIN:g} of what others gain"
    return [*checks, (title, bool(many), text)]


def _share_of_gain(every: Sequence[Rows], system: str, name: str) -> Check:
    """The target is by the fit to the guest's line; the share of the gain in score is shown beside it."""
    rows = (system, f"{AGENT}, {name}", f"{SFT}, {name}")
    fits, score = (gain_share(*(over(every, row, by).point for row in rows)) for by in ("fits", "score"))
    title = f"{system}: at most {MOST_OF_GAIN:.0%} of the gain in replies that fit"
    beside = "none in score" if score is None else f"{score:.0%} of that in score"
    return title, fits is not None and fits <= MOST_OF_GAIN, f"{'no gain' if fits is None else f'{fits:.0%}'}, {beside}"


def shown(found: Interval) -> str:
    return f"{found['mean']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def markdown(every: Sequence[Rows]) -> str:
    """The table of all systems."""
    lines = ["| replies | score | fit the guest's line | whole sentences |", "|---|---|---|---|"]
    for system in every[0]:
        score = interval(over(every, system))
        fits, sentences = (over(every, system, measure).point for measure in ("fits", "sentence"))
        cell = f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"
        lines.append(f"| {system} | {cell} | {fits:.0%} | {sentences:.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
