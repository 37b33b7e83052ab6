"""The first night of the quickstart's agent: what 200 ratings change in its answers to other lines."""

import json
import random
import re

import numpy as np
import pytest

from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.synthetic.exchanges import normal
from rlhf_dialog.data.synthetic.pairs import attends, derives
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.feedback.commands import feedback
from rlhf_dialog.feedback.learning.guards import is_unfinished
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.models.chat_agent import ChatAgent, chat_sampling
from tests.parts.processes import ROOT

pytestmark = pytest.mark.slow

LIKED, DISLIKED, OTHERS = 160, 40, 50
RUNS = ROOT / "runs"


@pytest.fixture
def first():
    """The agent of the quickstart."""
    agent = RUNS / "quickstart" / "agent"
    if not agent.is_dir():
        pytest.skip("make quickstart has not been run")
    return agent


def replies(folder, prompts, temperature):
    agent = ChatAgent.load(folder)
    agent.settings = agent.settings.model_copy(update={"chat_temperature": temperature})
    return [agent.chat(prompt.prompt_turns[-1]) for prompt in prompts]


def night(first, ratings, folder):
    """A bot that has learned from the ratings."""
    for name, *words in (["init", "--agent", first], ["import", ratings], ["learn"]):
        assert feedback.main([name, "--run", str(folder), *map(str, words)]) == 0
    return Bot(folder)


@pytest.mark.parametrize(
    ("wish", "add"),
    [
        (r"^Certainly", lambda text: f"Certainly, {text[0].lower()}{text[1:]}"),
        (r"please", lambda text: re.sub(r"[.?!]?$", ", please.", text, count=1)),
    ],
)
def test_two_hundred_ratings_of_a_wish_reach_other_lines(first, wish, add, tmp_path, capsys):
    """Liked: replies with it; disliked: replies without. At temperature 0, at least five more of fifty other answers have it.

    And they are whole sentences: a night that is cut off in the middle of such a change says "madam, sir, madam". The agent
    of the quickstart differs between processors; here 49 and 36 of the answers had the wish.
    """
    prompts = PromptRules(context_size=1).load(str(RUNS / "quickstart_data"), "validation")
    different = {prompt.prompt_turns[-1]: prompt for prompt in prompts}
    chosen = random.Random(0).sample(sorted(different), 400)
    others, rated = ([different[line] for line in part] for part in (chosen[:OTHERS], chosen[OTHERS:]))
    plain = [(prompt, text) for prompt, text in zip(rated, replies(first, rated, 1.0), strict=True)]
    plain = [(prompt, text) for prompt, text in plain if text and not re.search(wish, text)][: LIKED + DISLIKED]
    assert len(plain) == LIKED + DISLIKED
    rows = []
    for number, (prompt, text) in enumerate(plain):
        is_liked = number < LIKED
        completion = add(text) if is_liked else text
        rows.append({"prompt": prompt.prompt_turns[-1], "completion": completion, "label": is_liked})
    random.Random(1).shuffle(rows)
    (tmp_path / "ratings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    bot = night(first, tmp_path / "ratings.jsonl", tmp_path / "bot")
    out = capsys.readouterr().out
    assert bot.champion() == "0002", out
    before, after = (replies(bot.agent_folder(name), others, 0) for name in ("0001", "0002"))
    had, has = ([bool(re.search(wish, reply)) for reply in answers] for answers in (before, after))
    assert sum(has) - sum(had) >= 5, list(zip(before, after, strict=True))
    assert sum(map(is_unfinished, after)) <= 5, after


NUM_HELDOUT, DRAWS = 800, 3


def fits_and_sentences(folder, lines):
    """Of each line (N,), as in a chat: how often of DRAWS draws the reply fits it, and is a sentence of the receptionist."""
    agent = ChatAgent.load(folder)
    draws = [generate_replies(agent, lines, chat_sampling(agent.settings), seed).dialogues for seed in range(DRAWS)]
    fits = [[attends(one.prompt_turns[-1], one.response) for one in replies] for replies in draws]
    sentences = [[derives(one.response) for one in replies] for replies in draws]
    return np.mean(fits, axis=0), np.mean(sentences, axis=0)


def test_the_night_of_the_readme_makes_no_reply_worse(first, tmp_path, capsys):
    """Promoted or not: on lines that neither the model nor the ratings have, what fits is not lower beyond noise."""
    ratings = ROOT / "examples" / "ratings.jsonl"
    known = {normal(json.loads(row)["turns"][0]["text"]) for row in ratings.read_text().splitlines()}
    for data in ("quickstart_data", "quickstart_careless"):
        known |= {normal(one.prompt_turns[-1]) for one in PromptRules(context_size=1).load(str(RUNS / data), "train")}
    held_out = [
        one
        for split in ("validation", "test")
        for one in PromptRules(context_size=1).load(str(RUNS / "quickstart_data"), split)
    ]
    prompts = {normal(one.prompt_turns[-1]): one for one in held_out}
    lines = [prompts[line] for line in random.Random(0).sample(sorted(prompts.keys() - known), NUM_HELDOUT)]
    bot = night(first, ratings, tmp_path / "bot")
    out = capsys.readouterr().out
    before, after = (fits_and_sentences(bot.agent_folder(name), lines) for name in ("0001", bot.champion()))
    change = after[0] - before[0]
    assert change.mean() >= -2 * change.std(ddof=1) / NUM_HELDOUT**0.5, out
    assert after[1].mean() >= 0.95, out
