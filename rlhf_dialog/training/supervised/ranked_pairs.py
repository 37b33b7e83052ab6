"""Preference pairs that a reward makes: it ranks the replies to each prompt, sampled from a model or given in the data."""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog.config.loading import find_config, load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import SIDES, PreferencePair, load_pairs
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import load_rows
from rlhf_dialog.data.sources.record import checked_text
from rlhf_dialog.distributed.device import choose_device
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.replies import generate_replies, pick_prompts
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, read_settings
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.scoring import score_dialogues
from rlhf_dialog.training.supervised.settings import RankingKeys

logger = logging.getLogger(__name__)


def ranked_pairs(keys: RankingKeys, data_path: str, split: str, model_path: str) -> list[PreferencePair]:
    """The best and the worst reply to each prompt, by the reward of `rank_with`; replies that it scores alike are left out.

    Raises MissingSplit, and UserError for a YAML or data that cannot be read, or when the reward prefers no reply at all.
    """
    config = load_config(find_config(str(keys.rank_with)))
    reward = build_reward(config.reward_class.id, config.reward_class.args).move_to(choose_device(keys.device))
    groups = list(_candidates(keys, config, data_path, split, model_path))
    scores = iter(score_dialogues(reward, [dialogue for group in groups for dialogue in group]).total)
    pairs = []
    for number, group in enumerate(groups, 1):
        ranked = sorted(((next(scores), i) for i in range(len(group))), key=lambda one: one[0])
        if ranked[0][0] < ranked[-1][0]:
            chosen, rejected = group[ranked[-1][1]], group[ranked[0][1]]
            pairs.append(PreferencePair(chosen, rejected, None, f"{data_path}, {split}, prompt {number}"))
    logger.info("%s: the reward %s ranks the replies to %d of %d prompts", split, reward.name, len(pairs), len(groups))
    if not pairs:
        raise UserError(
            f"rank_with: the reward of '{keys.rank_with}' gives all replies to each of the {len(groups)} prompts in the {split} "
            "split the same score; use another reward, or other replies"
        )
    return pairs


def _candidates(
    keys: RankingKeys, config: Config, data_path: str, split: str, model_path: str
) -> Iterator[list[Dialogue]]:
    """The replies to each prompt, two or more."""
    is_daily_dialog = any(Path(os.path.expanduser(data_path)).glob("**/dialogues_*.txt"))  # without columns
    rows = [] if is_daily_dialog else load_rows(data_path, split, keys.columns)
    if rows and all(side in rows[0][1] for side in SIDES):
        yield from ([pair.chosen, pair.rejected] for pair in load_pairs(data_path, split, keys.columns))
        return
    dialogues = replace(PromptRules.from_keys(config), columns=keys.columns).load(data_path, split)
    limit = keys.max_train_pairs if split == "train" else keys.max_report_pairs
    prompts = pick_prompts(dialogues, limit, keys.seed)
    if all("replies" in prompt.meta for prompt in prompts):
        yield from (_given(prompt, f"{data_path}, {split}, prompt {prompt.meta['index'] + 1}") for prompt in prompts)
        return
    twice = sample_replies(keys, [prompt for prompt in prompts for _ in range(2)], model_path, config.turn_separator)
    yield from (twice[i : i + 2] for i in range(0, len(twice), 2))


def _given(prompt: Dialogue, where: str) -> list[Dialogue]:
    replies = prompt.meta["replies"]
    if not isinstance(replies, list) or len(replies) < 2:
        raise UserError(f"{where}: 'replies' must be a list of two replies or more")
    return [replace(prompt, response=checked_text(reply, "'replies'", where)) for reply in replies]


def sample_replies(keys: RankingKeys, prompts: list[Dialogue], model_path: str, turn_separator: str) -> list[Dialogue]:
    """Each prompt with one reply of the model, sampled with the settings of its folder, else at temperature 1.

    Raises UserError when it is not a causal LM, or has too few positions.
    """
    settings = AgentSettings(turn_separator=turn_separator, max_new_tokens=keys.max_new_tokens)
    try:
        own = read_settings(Path(model_path), settings)
        agent = ChatAgent.load(model_path, device=choose_device(keys.device), settings=own)
    except UserError as error:
        raise error.with_location("model_path", "--agent") from error
    return generate_replies(agent, prompts, agent.sampling, keys.seed, title="sampled replies").dialogues
