"""Examples as ids, as they were sampled and as they are taught; their log-probabilities; the file of the first version's."""

import json

import pytest
import torch

from rlhf_dialog.data.chat_template import CHAT_TEMPLATE, prompt_encoder
from rlhf_dialog.feedback.learning.tokenized_examples import (
    ExampleEncoder,
    ReferenceLogprobs,
    TokenizedExample,
    compute_logprobs_in_batches,
    row_names,
    sft_prompts,
)
from rlhf_dialog.feedback.store.examples import AnswerPair, RatedAnswer
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from rlhf_dialog.models.policy import Policy
from tests.parts.taught_bots import new_bot
from tests.parts.tiny import chat_tokenizer, gpt2, write_data

ROWS = [
    TokenizedExample([5, 6, 7], [20, 21, 257]),
    TokenizedExample([8], [30]),
    TokenizedExample([9, 10, 11, 12], [40, 41, 42, 43, 257]),
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    bot = new_bot(tmp_path_factory.mktemp("rows"))
    return ChatAgent.load(bot.agent_folder("0001"))


@pytest.fixture(scope="module")
def encoder(agent):
    return ExampleEncoder(agent)


def ids(agent, text):
    return agent.encoder.tokenizer(text)["input_ids"]


def test_a_row_is_what_supervised_fine_tuning_teaches(agent, encoder):
    row = encoder.encode_answer(["Hi .", "Hello ."], "Why ?")
    assert row.prompt == ids(agent, "Hi . <EOU> Hello . <EOU>")
    assert row.response == ids(agent, " Why ? <EOU>")
    turns = [f"{i} ." for i in range(9)]
    newest = turns[-agent.settings.context_size :]
    assert encoder.encode_answer(turns, "a").prompt == agent.encoder.encode_prompt(newest)


def test_the_sampled_ids_are_taken_where_they_read_as_the_answer(agent, encoder):
    whole, cut = ids(agent, "  Why ? <EOU>"), ids(agent, " Why ?")
    assert encoder.encode_answer(["Hi ."], "Why ?", whole).response == whole
    assert encoder.encode_answer(["Hi ."], "Why ?", cut).response == cut  # ended by the limit, so no end is taught
    for others in (ids(agent, " Who ? <EOU>"), [9999], [-1]):
        assert encoder.encode_answer(["Hi ."], "Why ?", others).response == ids(agent, " Why ? <EOU>")


def test_what_does_not_fit_into_the_positions_is_cut(encoder):
    row = encoder.encode_answer(["Hi ."] * 5, "a " * 300)
    assert (len(row.prompt), len(row.response)) == (1, 127)
    row = encoder.encode_answer(["Hello there ."] * 5, "a " * 50)
    assert len(row.prompt) + len(row.response) == 128


def test_with_a_chat_template_a_response_ends_with_its_end_of_turn():
    tokenizer = chat_tokenizer()
    turns, settings = prompt_encoder(tokenizer, CHAT_TEMPLATE, 100), AgentSettings(turn_separator=CHAT_TEMPLATE)
    encoder = ExampleEncoder(ChatAgent(Policy(gpt2(vocab_size=261)), turns, settings))
    assert tokenizer.decode(encoder.encode_answer(["Hi ."], "Why ?").response).endswith("Why ?<|im_end|>")


@pytest.mark.parametrize("own", [None, "Be kind ."])
def test_the_system_message_of_a_dialogue_is_read_in_the_place_of_the_agents(tmp_path, own):
    agent = ChatAgent.load(new_bot(tmp_path).agent_folder("0001"))
    if own is not None:
        agent.set_system_prompt(own)
    answer = RatedAnswer(("Hi .",), "No .", True, "thumb", "p", "d", 8, system="Be brief .")
    pair = AnswerPair(("Hi .",), "Why ?", "No .", "choice", "p", "d", 7, system="Be brief .")
    for one in (answer, pair):
        prompts = {tuple(row.prompt) for row in ExampleEncoder(agent).encode_example(one)}
        assert prompts == {tuple(ids(agent, "Be brief . <EOU> Hi . <EOU>"))}
    (row,) = ExampleEncoder(agent).encode_example(answer._replace(system=None))
    assert row.prompt == ids(agent, "Hi . <EOU>" if own is None else "Be kind . <EOU> Hi . <EOU>")


def test_a_pair_has_two_rows_with_names_of_their_own(agent, encoder):
    pair = AnswerPair(("Hi .",), "Why ?", "No .", "choice", "p", "d", 7, None, tuple(ids(agent, " No .")))
    assert row_names(pair) == ["7+", "7-"]
    assert [row.response for row in encoder.encode_example(pair)] == [ids(agent, " Why ? <EOU>"), ids(agent, " No .")]
    answer = RatedAnswer(("Hi .",), "No .", True, "thumb", "p", "d", 8)
    assert (row_names(answer), len(encoder.encode_example(answer))) == (["8"], 1)


def test_the_first_version_is_asked_once_for_each_row(tmp_path, monkeypatch):
    policy, asked = Policy(gpt2().eval()), []
    monkeypatch.setattr(
        "rlhf_dialog.feedback.learning.tokenized_examples.compute_logprobs_in_batches",
        lambda *args: asked.append(len(args[1])) or compute_logprobs_in_batches(*args),
    )
    path = tmp_path / "reference.json"
    rows = dict(zip("abc", ROWS, strict=True))
    reference = ReferenceLogprobs(policy, 256, 8, path, "first")
    reference.add({"a": rows["a"], "b": rows["b"]})
    reference.save({"a", "b"})
    again = ReferenceLogprobs(policy, 256, 8, path, "first")
    again.add(rows)
    assert asked == [2, 1]
    assert torch.equal(again.get(["a", "b"]), reference.get(["a", "b"]))  # bit for bit through the file
    again.add({"b": ROWS[2]})  # a restored store may give an event's number again
    assert again.get(["b"]).tolist() == compute_logprobs_in_batches(policy, [ROWS[2]], 256, 8).tolist()
    again.save({"b", "c"})  # a is forgotten
    assert sorted(json.loads(path.read_text())["logprobs"]) == ["b", "c"]
    assert ReferenceLogprobs(policy, 256, 8, path, "another model").logprobs == {}
    for damaged in ("[]", '{"setting": "first", "logprobs": {"a": "x"}}'):
        path.write_text(damaged)
        assert ReferenceLogprobs(policy, 256, 8, path, "first").logprobs == {}


def test_replies_of_the_sft_data(tmp_path, agent, encoder):
    data = write_data(tmp_path / "data", 6)
    prompts = sft_prompts(str(data), "train", 5, "<EOU>")
    assert len(prompts) > 6
    assert encoder.encode_reply(prompts[2]) == encoder.encode_answer(prompts[2].prompt_turns, prompts[2].reference)
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hi .", "Hello ."]}\n' * 2)
    assert sft_prompts(str(tmp_path / "train.jsonl"), "validation", 5, "<EOU>") == []
