"""Mutual information by two log-probabilities."""

import pytest

from experiments.mutual_information import MutualInformation, others
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.rewards import LikelihoodPrice
from tests.parts.tiny import byte_tokenizer, gpt2

FIRST, SECOND = ["Hello .", "Where is it ?"], ["A table ?", "For two ."]


@pytest.mark.slow
def test_it_is_the_difference_between_two_prompts(tmp_path):
    """Both replies are asked behind the other's turns alone, which are its prompt and what the policy and its user said."""
    save_agent(tmp_path, Policy(gpt2()).eval(), byte_tokenizer(), AgentSettings(context_size=2, max_prompt_length=99))
    went_on = Dialogue(["No ."]).with_reply("Hello .").with_user_turn("Where is it ?").with_reply("Inside .")
    price = LikelihoodPrice(str(tmp_path), floor=None, tokens=5)
    ours = price([Dialogue(FIRST, "Inside ."), Dialogue(SECOND, "Of course .")])
    theirs = price([Dialogue(SECOND, "Inside ."), Dialogue(FIRST, "Of course .")])
    wanted = [own - other for own, other in zip(ours, theirs, strict=True)]
    judge = MutualInformation(str(tmp_path), tokens=5)
    assert judge([went_on, Dialogue(SECOND, "Of course .")]) == pytest.approx(wanted, abs=1e-5)
    assert max(map(abs, wanted)) > 1e-4  # the prompt matters
    assert judge([went_on]) == [0.0]


def test_the_other_prompt_has_another_last_turn():
    a, b, c = (Dialogue([text], "x") for text in ("A ?", "B ?", "C ?"))
    assert others([a, b]) == [1, 0]
    assert others([a, a, b, b]) == [2, 3, 0, 1]
    assert others([a, a, a, c]) == [3, 3, 3, 1]
    assert others([a]) == [None]
