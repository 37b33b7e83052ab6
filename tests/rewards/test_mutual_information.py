"""Mutual information: two log-probabilities by hand, and which other prompt a reply is read behind."""

import pytest
from tiny import byte_tokenizer, gpt2

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.rewards.likelihood import LikelihoodPrice
from rlhf_dialog.rewards.mutual_information import MutualInformation, others

FIRST, SECOND = ["Hello .", "Where is it ?"], ["Are you cold ?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("models") / "lm"
    save_agent(target, Policy(gpt2()).eval(), byte_tokenizer(), AgentSettings(context_size=2, max_prompt_length=99))
    return str(target)


def test_it_is_the_difference_between_two_prompts(folder):
    dialogues = [Dialogue(FIRST, "Inside , please ."), Dialogue(SECOND, "A little .")]
    swapped = [Dialogue(SECOND, "Inside , please ."), Dialogue(FIRST, "A little .")]
    behind = LikelihoodPrice(folder, floor=None)
    wanted = [ours - theirs for ours, theirs in zip(behind(dialogues), behind(swapped), strict=True)]
    judge = MutualInformation(folder)
    assert judge(dialogues) == pytest.approx(wanted, abs=1e-6)
    assert max(map(abs, wanted)) > 1e-4  # the prompt matters
    assert list(judge.frozen_models()) == list(behind.frozen_models())
    assert MutualInformation.model_paths({"model": folder}) == LikelihoodPrice.model_paths({"model": folder})


def test_the_other_prompt_has_another_last_turn():
    a, b, c = (Dialogue([text], "x") for text in ("A ?", "B ?", "C ?"))
    assert others([a, b]) == [1, 0]
    assert others([a, a, b, b]) == [2, 3, 0, 1]
    assert others([a, a, a, c]) == [3, 3, 3, 1]
    assert others([a]) == [None]
