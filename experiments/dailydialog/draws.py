"""Draws of the SFT model to training prompts, ranked by the reward:  python -m experiments.dailydialog.draws PLAN

Several replies to each prompt, until together they have as many tokens as one run of PPO generates; the parts of the reward that
need a reference are left out. A chunk of prompts is a file as soon as it is finished, and is not drawn again. In the end best/
holds the best reply to each prompt as data of an SFT, and pairs.jsonl the best and the worst of the same draws.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from experiments.dailydialog.rows import WithoutNeeds, settings_of
from rlhf_dialog.atomic_files import replace_json, replace_text
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import build_reward

CHUNK = 128  # prompts


class Plan(BaseModel):
    """config: the YAML of a run of PPO, whose data and reward are used; tokens: of all replies together."""

    model: str
    config: str
    tokens: int
    draws: int
    seed: int
    folder: str


def draw(plan: Plan) -> None:
    """Write the missing chunks, and what is made of all of them."""
    config, folder = load_config(plan.config), Path(plan.folder)
    agent = ChatAgent.load(plan.model, settings=settings_of(config))
    reward = WithoutNeeds(build_reward(config.reward_class.id, config.reward_class.args))
    rules = PromptRules.from_keys(config, turn_separator=agent.settings.turn_separator)
    every = rules.load(str(config.env.args.data_path), "train")
    prompts = list(every)
    random.Random(plan.seed).shuffle(prompts)
    rows, tokens = list[dict[str, Any]](), 0
    for start in range(0, len(prompts), CHUNK):
        if tokens >= plan.tokens:
            break
        path = folder / "chunks" / f"{start // CHUNK:05}.jsonl"
        if not path.is_file():
            made = chunk(agent, reward, prompts[start : start + CHUNK], plan, start)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, "".join(json.dumps(row) + "\n" for row in made))
        stored = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows, tokens = rows + stored, tokens + sum(row["tokens"] for row in stored)
        print(f"drawn: {min(tokens, plan.tokens)} of {plan.tokens} tokens", flush=True)
    write(folder, rows, tokens)


def chunk(
    agent: ChatAgent, reward: BaseReward, prompts: list[Dialogue], plan: Plan, start: int
) -> list[dict[str, Any]]:
    """All draws of these prompts with their scores; no draw depends on another chunk."""
    drawn = [
        generate_replies(agent, prompts, agent.sampling, plan.seed + 1000 * start + i, CHUNK) for i in range(plan.draws)
    ]
    scores = np.stack([np.asarray(reward(some.dialogues)) for some in drawn])
    return [
        {
            "turns": prompt.prompt_turns,
            "replies": [some.dialogues[number].response for some in drawn],
            "scores": scores[:, number].tolist(),
            "tokens": sum(some.num_tokens[number] for some in drawn),
        }
        for number, prompt in enumerate(prompts)
    ]


def write(folder: Path, rows: list[dict[str, Any]], tokens: int) -> None:
    """The best replies, the pairs, and counts; empty replies and equal ones are left out."""
    best, pairs = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in rows:
        ranked = [row["replies"][i] for i in np.argsort(row["scores"], kind="stable")]
        if ranked[-1]:
            best.append({"prompt": row["turns"], "reference": ranked[-1]})
        if ranked[0] and ranked[-1] and ranked[0] != ranked[-1]:
            pairs.append({"prompt": row["turns"], "chosen": ranked[-1], "rejected": ranked[0]})
    (folder / "best").mkdir(exist_ok=True)
    for path, some in ((folder / "best" / "train.jsonl", best), (folder / "pairs.jsonl", pairs)):
        replace_text(path, "".join(json.dumps(one) + "\n" for one in some))
    counts = {"tokens": tokens, "prompts": len(rows), "best": len(best), "pairs": len(pairs)}
    replace_json(folder / "drawn.json", counts)


if __name__ == "__main__":
    draw(Plan(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
