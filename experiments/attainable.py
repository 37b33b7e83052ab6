"""How much of a run's reward any policy could gain on its prompts:

python -m experiments.attainable --config dailydialog_small.yaml --prompts 160 --draws 16 --output attainable.json

Draws replies of the run's start at the run's own temperature, scores them with the run's reward, and shows where the variance of
the score lies: between prompts, where no policy can gain, or between replies to one prompt, and how much of the latter can be
known without the reference (`experiments.prediction`). Beside it stand the gains of choosing and of other temperatures, with 95 %
intervals over dialogues. N prompts, M draws of a reply to each.
"""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.frontier import best_of_n_kl
from experiments.users.two_sample import check_scikit_learn
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import check_device, check_output, check_seed
from rlhf_dialog.commands.options import REGISTER, DeviceOption, option, register, run_command
from rlhf_dialog.config.loading import find_config, load_config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.sources.record import SPLITS
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import (
    Array,
    Interval,
    Numbers,
    Statistic,
    difference,
    interval,
    mean_statistic,
    ratio,
)

if TYPE_CHECKING:
    from rlhf_dialog.config.schema import Config
    from rlhf_dialog.evaluation.replies import Replies
    from rlhf_dialog.models.chat_agent import ChatAgent
    from rlhf_dialog.models.generation import Sampling

COUNTS = (2, 4, 8)  # of the best of n
FEWER = 4  # draws at other temperatures
AT_ONCE = 64  # replies


class AttainableOptions(DeviceOption):
    description = __doc__
    config: str = option("YAML of the run, whose model_path is the start")
    output: Path = option("JSON file to write")
    prompts: int = option("number of prompts, drawn with --seed (default: 160)", 160)
    draws: int = option("replies to each prompt (default: 16)", 16)
    temperatures: tuple[float, ...] = option(
        f"other temperatures, of which {FEWER} replies to each prompt are drawn (default: 0.7 0.9)", (0.7, 0.9)
    )
    split: str = option("default: validation", "validation", choices=SPLITS)
    register: str | None = option(REGISTER)
    seed: int = option("seed of prompts and replies (default: 0)", 0)


def run(options: AttainableOptions) -> None:
    """Draw, score, and write what was found."""
    check(options)
    if options.register:
        register(options.register)
    from experiments.dailydialog.rows import scorer_of
    from experiments.prediction import predict
    from rlhf_dialog.evaluation.measure import Judges, dialogue_numbers, score_replies
    from rlhf_dialog.rewards.base import reads_reference

    options = options.on_device()
    config = load_config(find_config(options.config), {})
    scorer = scorer_of(config)
    agent, prompts = load_start(config, options)
    scorer.reward.check_prompts(prompts)
    scorer.reward.move_to(options.device)

    def scored(sampling: "Sampling", count: int) -> "tuple[list[Replies], Array]":
        drawn = draw(agent, prompts, sampling, count, options.seed)
        return drawn, np.stack([score_replies(some, Judges(), scorer) for some in drawn], axis=1)

    drawn, scores = scored(agent.sampling, options.draws)
    check_variance(scores)
    others = {t: scored(replace(agent.sampling, temperature=t), FEWER)[1] for t in options.temperatures}
    found = summary(
        scores, predict(agent, drawn, scores), others, dialogue_numbers(prompts), reads_reference(scorer.reward)
    )
    settings = {name: getattr(options, name) for name in ("config", "draws", "split", "seed", "device")}
    replace_json(options.output, {"settings": settings | {"prompts": len(prompts)}, **found})
    print(markdown(found))


def check(options: AttainableOptions) -> None:
    """Raises UserError for options that cannot work."""
    check_scikit_learn()
    check_seed(options.seed)
    check_device(options.device)
    check_output("output", options.output, str(options.output))
    for name, least in (("prompts", 10), ("draws", 2)):
        if getattr(options, name) < least:
            raise UserError(f"--{name}: found {getattr(options, name)}, wanted at least {least}")
    if wrong := [t for t in options.temperatures if not 1e-4 <= t < math.inf]:
        raise UserError(f"--temperatures: found {wrong[0]:g}, wanted at least 0.0001")


def load_start(config: "Config", options: AttainableOptions) -> "tuple[ChatAgent, list[Dialogue]]":
    """The run's start, and the prompts that are drawn. Raises UserError for a run whose prompts come from an environment."""
    from experiments.dailydialog.rows import settings_of
    from rlhf_dialog.data.chat_template import keep_with_room
    from rlhf_dialog.data.prompts import PromptRules
    from rlhf_dialog.evaluation.replies import pick_prompts
    from rlhf_dialog.models.chat_agent import ChatAgent, settle_separator

    data = config.env.args
    if config.environment:
        raise UserError(f"--config {options.config}: its prompts come from an environment; name a run with a data set")
    config = settle_separator(config)
    every = PromptRules.from_keys(config).load(str(data.data_path), options.split)
    settings, trusted = settings_of(config), config.trust_remote_code
    agent = ChatAgent.load(config.model_path, data.tokenizer_path, options.device, settings, trusted)
    return agent, pick_prompts(keep_with_room(agent.encoder, every), options.prompts, options.seed)


def draw(agent: "ChatAgent", prompts: list[Dialogue], sampling: "Sampling", count: int, seed: int) -> "list[Replies]":
    """`count` replies to each prompt, which is read once for all of them."""
    import torch

    from experiments.learned_bias import answer
    from rlhf_dialog.evaluation.replies import Replies, join_replies, progress

    size, parts = max(1, AT_ONCE // count), list[Replies]()
    torch.manual_seed(seed)
    for start in progress(range(0, len(prompts), size), f"replies at temperature {sampling.temperature:g}"):
        asked = [prompt for prompt in prompts[start : start + size] for _ in range(count)]
        parts.append(answer(agent, asked, sampling, count)[1])
    every = join_replies(parts)
    return [Replies(every.dialogues[i::count], every.num_tokens[i::count]) for i in range(count)]


def check_variance(scores: Array) -> None:
    """Raises UserError where the score does not depend on the reply."""
    if not np.ptp(scores, axis=1).any():
        count = scores.shape[1]
        raise UserError(
            f"reward_class: gives all {count} replies to each prompt the same score; there is nothing to gain"
        )


def summary(
    scores: Array, predictions: Array, others: dict[float, Array], dialogues: Numbers, reads: bool
) -> dict[str, Any]:
    """What is written, from scores and predictions (N, M), and scores (N, m) at other temperatures; `reads`: the reference."""
    from rlhf_dialog.rewards.base import READS_REFERENCE

    own = mean_statistic(scores.mean(axis=1), dialogues)
    explained = interval(explained_share(scores, predictions, dialogues))
    choosers = {f"the reward{READS_REFERENCE if reads else ''}": scores, "the prediction": predictions}
    gains = {
        f"best of {n} by {name}": difference(own, mean_statistic(best_of(scores, by, n), dialogues))
        for name, by in choosers.items()
        for n in COUNTS
        if n <= scores.shape[1]
    }
    gains |= {
        f"temperature {t:g}": difference(own, mean_statistic(some.mean(axis=1), dialogues))
        for t, some in others.items()
    }
    found: dict[str, Any] = {"score": interval(own), **variances(scores), "explained_within": explained, "gains": gains}
    measured = max(gain["mean"] for name, gain in gains.items() if READS_REFERENCE not in name)
    return found | {"limit": limit(found["within_sd"], explained["high"], scores.shape[1], reads, measured)}


def variances(scores: Array) -> dict[str, float]:
    """`sd`, `icc` and `within_sd` of scores (N, M), by the mean squares of a one-way analysis of variance.

    The intraclass correlation is the share of the variance that lies between prompts, ICC(1, 1) of Shrout & Fleiss (1979):
    (MS between - MS within) / (MS between + (M - 1) MS within).
    """
    count = scores.shape[1]
    between, within = count * scores.mean(axis=1).var(ddof=1), scores.var(axis=1, ddof=1).mean()
    icc = (between - within) / (between + (count - 1) * within)
    return {"sd": float(scores.std(ddof=1)), "icc": float(icc), "within_sd": math.sqrt(within)}


def explained_share(scores: Array, predictions: Array, dialogues: Numbers) -> Statistic:
    """R squared within prompts: 1 - the squared errors of the prediction / the squares, both about the means of the prompts."""
    centred, predicted = (x - x.mean(axis=1, keepdims=True) for x in (scores, predictions))
    squares, errors = (centred**2).sum(axis=1), ((centred - predicted) ** 2).sum(axis=1)
    return Statistic(np.stack([squares - errors, squares], axis=1), ratio, dialogues)


def best_of(scores: Array, by: Array, n: int) -> Array:
    """(N,): the mean score of the best of n replies by `by` (N, M), over all choices of n of the M replies to a prompt."""
    count = scores.shape[1]
    ranked = np.take_along_axis(scores, by.argsort(axis=1, kind="stable"), axis=1)
    weights = np.asarray([math.comb(rank, n - 1) for rank in range(count)]) / math.comb(count, n)
    return np.asarray(ranked @ weights)


def limit(within_sd: float, share: float, count: int, reads: bool, measured: float) -> dict[str, Any]:
    """What a policy can gain that is no further from its start than the best of M replies, and a sentence.

    A policy at a KL of K nats gains at most sd * sqrt(2 K) of what is normally distributed, or sub-Gaussian, under its start
    (Boucheron, Lugosi & Massart 2013, lemma 4.18). For a reward that reads the reference, sd is that of the part that the
    prediction explains, `share` of the variance within prompts: the rest is noise to a policy. The limit is no less than
    `measured`, the largest gain of a row that reads no reference.
    """
    kl = best_of_n_kl(count)
    known = within_sd * math.sqrt(2 * kl)
    gain = max(known * math.sqrt(max(share, 0.0)), measured) if reads else known
    sentence = (
        f"No policy is expected to gain more than about {gain:+.3f} within {kl:.1f} nats a reply of its start (the KL of the "
        f"best of {count}): sd * sqrt(2 KL) of "
    )
    sentence += (
        "what the prediction explains within prompts, at the upper end of its interval, or a measured gain where that is "
        f"larger. Who knows the reference could gain {known:+.3f}. A better prediction would raise the limit."
        if reads
        else "the score within prompts, all of which can be known, since the reward reads no reference."
    )
    return {"gain": gain, "kl": kl, "knowing_the_reward": known, "sentence": sentence}


def markdown(found: dict[str, Any]) -> str:
    """The table, and the sentence below it."""
    rows = {
        "score": shown(found["score"], ".3f"),
        "standard deviation": f"{found['sd']:.3f}",
        "share of the variance between prompts (ICC)": f"{found['icc']:.2f}",
        "standard deviation within prompts": f"{found['within_sd']:.3f}",
        "share of the variance within prompts that a prediction explains": shown(found["explained_within"], ".3f"),
    }
    rows |= {f"gain: {name}": shown(gain, "+.3f") for name, gain in found["gains"].items()}
    lines = ["| | value [95 % interval] |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join([*lines, "", found["limit"]["sentence"]])


def shown(found: Interval, form: str) -> str:
    return f"{found['mean']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


main = partial(run_command, AttainableOptions, run)

if __name__ == "__main__":
    raise SystemExit(main())
