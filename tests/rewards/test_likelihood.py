"""The price on unlikely replies by a loop over tokens."""

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.rewards.likelihood import MODEL, LikelihoodPrice
from tests.parts.tiny import byte_tokenizer, chat_tokenizer, gpt2

TURNS = ["Hello .", "Where is it ?"]
DIALOGUES = [Dialogue(TURNS, response=text) for text in ("Inside , please .", "A", "z" * 22)]
DIALOGUES.insert(2, Dialogue(["Hello ."], response=""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("models") / "lm"
    save_agent(target, Policy(gpt2()).eval(), byte_tokenizer(), AgentSettings(context_size=2, max_prompt_length=99))
    return target


def by_hand(responder, dialogue, tokens):
    """The mean of log softmax at each place, one forward pass for each token."""
    reply = responder.encoder.encode_reply(dialogue.response)
    counted = reply[: min(len(reply) - 1, tokens)] if dialogue.response else reply
    ids, logprobs = responder.encoder.encode_prompt(dialogue.prompt_turns), []
    for token in counted:
        with torch.no_grad():
            logprobs.append(responder.policy.lm(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token].item())
        ids = [*ids, token]
    return sum(logprobs) / len(logprobs)


@pytest.mark.parametrize("tokens", [1, 5, 12])
def test_the_price_is_what_lies_below_the_floor(folder, tokens):
    reward = LikelihoodPrice(str(folder), floor=-5.55, tokens=tokens)
    means = [by_hand(reward.responder, dialogue, tokens) for dialogue in DIALOGUES]
    assert reward.means(DIALOGUES) == pytest.approx(means, abs=1e-5)
    assert reward(DIALOGUES) == pytest.approx([min(0.0, mean + 5.55) for mean in means], abs=1e-5)
    assert min(means) < -5.55 < max(means)  # some pay, and some do not
    assert reward([]) == []
    assert reward.means(DIALOGUES * 5) == pytest.approx(means * 5, abs=1e-5)  # in two batches


def test_the_model_is_frozen_and_named(folder):
    reward, judge = LikelihoodPrice(str(folder)), LikelihoodPrice(str(folder), None)
    assert (judge.name, reward.name, reward.floor, reward.tokens) == ("likelihood", "likelihood_price", -4.0, 12)
    assert not any(p.requires_grad for p in reward.frozen_models()[MODEL].parameters())
    assert LikelihoodPrice.model_paths({"model": "x"}) == {MODEL: "x"}
    assert LikelihoodPrice.model_paths({}) == {}


def test_the_probabilities_are_those_of_all_ids_of_the_model(tmp_path):
    """Three rows of the embedding have no token; a policy would never draw them."""
    save_agent(tmp_path, Policy(gpt2(vocab_size=262)).eval(), byte_tokenizer(), AgentSettings(max_prompt_length=99))
    reward = LikelihoodPrice(str(tmp_path), None, tokens=3)
    assert reward(DIALOGUES) == pytest.approx([by_hand(reward.responder, one, 3) for one in DIALOGUES], abs=1e-5)


def test_a_chat_model_reads_prompts_behind_the_system_prompt(tmp_path, folder):
    gpt2(vocab_size=261).save_pretrained(tmp_path)
    chat_tokenizer().save_pretrained(tmp_path)
    plain, told = (LikelihoodPrice(str(tmp_path), system_prompt=text) for text in (None, "Be brief ."))
    prompts = [one.responder.encoder.encode_prompt(TURNS) for one in (plain, told)]
    assert "system" not in chat_tokenizer().decode(prompts[0])
    assert "Be brief ." in chat_tokenizer().decode(prompts[1])
    assert plain(DIALOGUES) != told(DIALOGUES)
    with pytest.raises(UserError, match=r"system_prompt: 'Be brief \.'"):
        LikelihoodPrice(str(folder), system_prompt="Be brief .")


def test_a_longer_dialogue_counts_with_its_newest_turns(folder):
    """The model reads two turns: of a prompt of four, and of a prompt with an answer of the policy in it."""
    reward = LikelihoodPrice(str(folder), floor=None, tokens=5)
    cut = Dialogue(["Hello .", "Where is it ?"], response="Inside .")
    longer = Dialogue(["No .", "A table ?", "Hello .", "Where is it ?"], response="Inside .")
    went_on = Dialogue(["No ."]).with_reply("Hello .").with_user_turn("Where is it ?").with_reply("Inside .")
    assert reward.means([longer, went_on]) == pytest.approx([by_hand(reward.responder, cut, 5)] * 2, abs=1e-5)
