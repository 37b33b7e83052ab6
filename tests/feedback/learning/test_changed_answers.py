"""How many of the newest lines a new version answers differently: the rule, the numbers that both versions draw, the text."""

import json

import pytest
import torch

from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.report import AnswerChange, ChangedAnswers, compare_answers
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.models.chat_agent import ChatAgent
from tests.parts.taught_bots import new_bot

PROMPTS = [(f"Hello {number} .",) for number in range(12)]


def test_five_lines_have_to_change_or_all_of_fewer_and_each_is_shown_on_three_lines():
    change = AnswerChange("two\nlines", "", "a  b")
    for num_lines, count, is_enough in [(50, 5, True), (50, 4, False), (20, 4, False), (3, 3, True), (3, 2, False)]:
        assert ChangedAnswers(num_lines, [change] * count).is_enough is is_enough
    shown = ChangedAnswers(50, [change]).shown_lines()
    assert shown[1:] == ["  line    two lines", "  before  (nothing)", "  after   a b"]


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    return new_bot(tmp_path_factory.mktemp("changed"))


def learner_with_noise(bot, size, draw=0):
    learner = Learner(bot, read_settings(bot.settings_path))
    with torch.no_grad():
        for seed, parameter in enumerate(learner.parameters):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + draw))
            parameter.add_(size * noise)
    return learner


def test_the_same_weights_draw_the_same_answers(bot):
    """Though they are sampled: without the same numbers, random weights would agree on nothing."""
    learner = learner_with_noise(bot, 0.0)
    assert learner.agent.sampling.temperature == 1
    assert compare_answers(learner, learner.reference_policy, PROMPTS) == ChangedAnswers(12, [])


def test_other_weights_answer_as_each_would_by_itself(bot):
    """At temperature 0 against `chat` of each version; the temperature is that of the chat."""
    learner = learner_with_noise(bot, 0.3)
    learner.agent.settings = learner.agent.settings.model_copy(update={"chat_temperature": 0.0})
    found = compare_answers(learner, learner.reference_policy, PROMPTS)
    assert learner.agent.sampling.temperature == 1
    path = bot.agent_folder("0001") / "rlhf_dialog.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "top_k": 1}))  # the likeliest token, by another way
    first = ChatAgent.load(path.parent)
    path.write_text(json.dumps(settings))
    before = [first.chat(line) for (line,) in PROMPTS]
    first.policy.lm.load_state_dict(learner.policy.lm.state_dict())
    after = [first.chat(line) for (line,) in PROMPTS]
    wanted = [
        AnswerChange(line, old, new) for (line,), old, new in zip(PROMPTS, before, after, strict=True) if old != new
    ]
    assert wanted
    assert found == ChangedAnswers(12, wanted)
