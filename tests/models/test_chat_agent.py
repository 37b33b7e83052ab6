"""An agent from Python: its settings, its prompt, its replies, and folders that are wrong."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent
from tests.parts.agents import save
from tests.parts.tiny import byte_tokenizer


def test_settings_come_from_the_folder_and_have_defaults(agent_folder, tmp_path):
    chat_agent = ChatAgent.load(agent_folder)
    assert (chat_agent.sampling.max_new_tokens, chat_agent.settings.max_prompt_length) == (12, 100)
    assert (chat_agent.sampling.temperature, chat_agent.sampling.top_k, chat_agent.sampling.top_p) == (1.0, 0, 1.0)
    plain = ChatAgent.load(save(tmp_path / "plain"))  # any causal LM folder is an agent
    assert plain.settings == AgentSettings(turn_separator="<EOU>")
    assert isinstance(plain.chat("Hello"), str)


def test_a_person_hears_replies_at_the_chats_temperature_and_training_samples_at_its_own(tmp_path):
    folder = save(tmp_path / "cold", {"max_new_tokens": 8, "chat_temperature": 0})
    agent, expected = ChatAgent.load(folder), greedy_by_hand(folder, ["Hello there"], 8)
    assert {agent.chat("Hello there") for _ in range(4)} == {expected}
    assert len({agent.reply([Dialogue(["Hello there"])])[0].text for _ in range(8)}) > 1


def greedy_by_hand(agent_folder: Path, turns: list[str], max_new_tokens: int) -> str:
    """The most likely tokens after `a <EOU> b <EOU>`, one whole forward pass each, without cache and padding."""
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(agent_folder), AutoTokenizer.from_pretrained(agent_folder)
    ids = tokenizer(" <EOU> ".join(turns) + " <EOU>", add_special_tokens=False)["input_ids"]
    separator, end = tokenizer.convert_tokens_to_ids("<EOU>"), tokenizer.eos_token_id
    written: list[int] = []
    with torch.no_grad():
        while len(written) < max_new_tokens and not (written and written[-1] in (separator, end)):
            written.append(int(lm(torch.tensor([ids + written])).logits[0, -1].argmax()))
    return tokenizer.decode([i for i in written if i not in (separator, end, tokenizer.pad_token_id)]).strip()


def test_the_prompt_is_the_history_in_order_with_separators(tmp_path):
    """At a temperature near 0 sampling is greedy, so the reply shows what the prompt was."""
    settings = {"max_new_tokens": 8, "temperature": 1e-4, "context_size": 3}
    agent_folder = save(tmp_path / "sharp", settings, initializer_range=0.3)
    chat_agent = ChatAgent.load(agent_folder)
    expected = greedy_by_hand(agent_folder, ["two", "three", "four"], 8)
    assert chat_agent.chat("  four ", history=["one", "two ", "three"]) == expected  # the last 3 turns, stripped
    assert expected != greedy_by_hand(agent_folder, ["one", "two", "three", "four"], 8)
    assert chat_agent.chat("four") == greedy_by_hand(agent_folder, ["four"], 8)


@pytest.mark.slow
def test_a_history_longer_than_the_models_positions_still_works(chat_agent, tmp_path):
    assert isinstance(chat_agent.chat("word " * 2000, history=["word " * 300] * 40), str)
    settings = {"max_new_tokens": 20, "max_prompt_length": 500}
    enough = ChatAgent.load(save(tmp_path / "enough", settings, n_positions=22))  # a reply and two tokens before it
    assert isinstance(enough.chat("word " * 50, history=["more words"] * 9), str)
    with pytest.raises(UserError, match="21 positions, too few for 20 new tokens"):
        ChatAgent.load(save(tmp_path / "few", settings, n_positions=21))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format_version": 1, "max_new', ""),
        ('{"odd_key": 1}', ""),
        ('{"top_p": 7}', ""),
        ('"x"', ""),
        ('{"format_version": 2, "a_key_of_tomorrow": 1}', "version 2, but this program reads versions up to 1; update"),
    ],
)
def test_a_damaged_or_newer_settings_file_is_the_users_error(tmp_path, text, words):
    save(tmp_path)
    (tmp_path / AGENT_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"{AGENT_FILE}.*{words}"):
        ChatAgent.load(tmp_path)


def test_an_agent_stops_where_its_training_did(tmp_path):
    agent = ChatAgent.load(save(tmp_path, {"stop_token_ids": [*range(256)], "max_new_tokens": 9}))
    assert len(agent.reply([Dialogue(["Hello"])])[0].ids) == 1


def test_another_tokenizer_must_not_be_larger_than_the_model(agent_folder, tmp_path):
    words = byte_tokenizer()
    words.save_pretrained(tmp_path)
    assert isinstance(ChatAgent.load(agent_folder, tokenizer=str(tmp_path)).chat("Hi"), str)
    words.add_tokens(["anew"])
    words.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"260 tokens, .* 259"):
        ChatAgent.load(agent_folder, tokenizer=str(tmp_path))


def test_a_responder_answers_after_all_that_has_been_said(tmp_path):
    """The user's turn behind the policy's own is seen; replies come in the order of the dialogues, with their ids."""
    folder = save(tmp_path / "sharp", {"max_new_tokens": 8, "temperature": 1e-4}, initializer_range=0.3)
    agent = ChatAgent.load(folder)
    replies = agent.reply([Dialogue(["one"], response="two").with_user_turn("three"), Dialogue(["one"])])
    assert [x.text for x in replies] == [
        greedy_by_hand(folder, turns, 8) for turns in (["one", "two", "three"], ["one"])
    ]
    assert [agent.encoder.reply_text(x.ids) for x in replies] == [x.text for x in replies]
    assert [x.truncated for x in replies] == [len(x.ids) == 8 and x.ids[-1] not in (257, 258) for x in replies]


def test_a_separator_in_a_message_is_not_the_end_of_a_turn(chat_agent):
    assert chat_agent.encoder.spoken("Hi <EOU> there") == "Hi there"
    torch.manual_seed(3)
    expected = chat_agent.chat("Hi there", ["a b"])
    torch.manual_seed(3)
    assert chat_agent.chat("Hi <EOU>there", ["a <EOU>b"]) == expected
