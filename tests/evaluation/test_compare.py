"""Two agents on the same prompts, the divergence between them, and the frontier of score and KL."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptEncoder
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.compare import Comparison, sampling_like
from rlhf_dialog.evaluation.divergence import by_position, kl_by_token, log_ratios
from rlhf_dialog.evaluation.frontier import best_of_n_kl, equal_n, n_with_kl, plot_frontier, points, worth
from rlhf_dialog.evaluation.logit_bias_baseline import BiasPrompts
from rlhf_dialog.evaluation.measure import Judges
from rlhf_dialog.evaluation.replies import Replies, generate_replies
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.byte_agents import PROMPTS, agent_of
from tests.parts.tiny import byte_tokenizer, chat_tokenizer, gpt2


def matching(monkeypatch, distinct_2) -> tuple[Comparison, list[float]]:
    """A comparison whose baseline has this distinct-2 at a temperature, and the temperatures that were tried."""
    tried = []

    def replies(agent, prompts, sampling, *_):
        assert agent == "baseline"
        assert len(prompts) == 1500  # all of them
        assert not sampling.greedy
        tried.append(sampling.temperature)
        return sampling.temperature

    monkeypatch.setattr("rlhf_dialog.evaluation.replies.generate_replies", replies)
    monkeypatch.setattr("rlhf_dialog.evaluation.measure.distinct", lambda temperature, n: distinct_2(temperature))
    systems = {"after": "agent", "before": "baseline"}
    return Comparison(systems, [Dialogue(["a"])] * 1500, Judges(), Sampling(greedy=True)), tried


def test_the_matched_temperature_has_the_agents_distinct_2(monkeypatch):
    """With a distinct-2 of half the temperature, an agent at 0.4 is met at temperature 0.8; one at 0.9 nowhere."""
    comparison, tried = matching(monkeypatch, lambda temperature: temperature / 2)
    match = comparison.match_distinct_2(0.4)
    assert match.distinct_2 == pytest.approx(0.4, abs=0.001)
    assert match.temperature == pytest.approx(0.8, abs=0.002)
    assert match.answers == match.temperature  # the replies that were measured, not written once more
    assert len(tried) == len(set(tried)) <= 14
    tried.clear()
    comparison.match_distinct_2(0.4, steps=3)
    assert tried == [0.3, 1.5, 0.9, 0.6, 0.75]
    assert comparison.match_distinct_2(0.9) is comparison.match_distinct_2(0.1) is None


def test_an_option_replaces_the_agents_own_sampling():
    own = Sampling(20, temperature=0.7, top_k=5, top_p=0.9)
    given = {"temperature": None, "top_k": 0, "top_p": None}
    assert sampling_like(own, given, min_new_tokens=2, greedy=True) == Sampling(20, 0.7, 0, 0.9, 2, True)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_sampling_out_of_range_is_refused(wrong):
    given = {"temperature": None, "top_k": None, "top_p": None} | wrong
    with pytest.raises(UserError, match=r"temperature must be at least 0\.0001, top_k at least 0, top_p above 0"):
        sampling_like(Sampling(20), given, min_new_tokens=0, greedy=False)


def test_what_counts_tokens_is_not_compared_between_two_tokenizers(monkeypatch, caplog):
    def agent(*words: str) -> SimpleNamespace:
        vocabulary = {word: number for number, word in enumerate(words)}
        return SimpleNamespace(encoder=SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary)))

    found = {name: {"mean": 1.0, "low": 0.5, "high": 1.5} for name in ("mean_length", "rouge1")}
    monkeypatch.setattr("rlhf_dialog.evaluation.measure.differences", lambda *_: dict(found))
    for other, expected in ((agent("a"), 1.0), (agent("b"), None)):
        comparison = Comparison({"after": agent("a"), "before": other}, [], Judges(), Sampling())
        difference = comparison._difference({"after": None, "before": None})
        assert difference["mean_length"]["mean"] == expected
        assert difference["rouge1"]["mean"] == 1.0
    assert "different tokenizers" in caplog.text


class Vowels(BaseReward):
    """A judge that counts vowels."""

    name = "vowels"

    def __call__(self, dialogues):
        return [float(sum(letter in "aeiou" for letter in dialogue.response)) for dialogue in dialogues]


def chat_agent(seed: int, system_prompt: str | None) -> ChatAgent:
    settings = AgentSettings(turn_separator="chat_template", system_prompt=system_prompt, max_new_tokens=9)
    tokenizer = chat_tokenizer()
    encoder = prompt_encoder(tokenizer, "chat_template", settings.max_prompt_length, system_prompt)
    return ChatAgent(Policy(gpt2(seed, vocab_size=261)).eval(), encoder, settings)


def test_the_start_behind_other_system_prompts_is_a_row_each():
    """The rows are those of a start that has the prompt itself; the agent keeps its own."""
    prompts = [Dialogue([text]) for text in ("Hello .", "Where is it ?", "No .", "A table , please .")]
    judges = Judges(user_judges={"judge_vowels": Vowels()})
    systems = {"after": chat_agent(1, "Be brief ."), "before": chat_agent(0, "Be brief .")}
    texts = ["Be brief .", "Be very loud .", None]
    compared = Comparison(systems, prompts, judges, Sampling(9), seed=5)
    result = compared.run([], system_prompts=texts)
    rows = [f"before, system prompt {number}" for number in (1, 2, 3)]
    assert list(result["sweep"]) == rows
    assert list(result["preferred"]) == ["before", *rows]

    def replies(name):
        return [dialogue.response for dialogue in compared.answers[name].dialogues]

    assert replies(rows[0]) == replies("before")
    for row, text in zip(rows, texts, strict=True):
        alone = Comparison({"metrics": chat_agent(0, text)}, prompts, judges, Sampling(9), seed=5)
        alone.run([])
        assert replies(row) == [dialogue.response for dialogue in alone.answers["metrics"].dialogues]
    assert len({tuple(replies(row)) for row in rows}) == 3
    shares = []
    for ours, theirs in zip(replies("after"), replies("before"), strict=True):
        counts = [sum(text.count(letter) for letter in "aeiou") for text in (ours, theirs)]
        shares.append(1.0 if counts[0] > counts[1] else 0.5 if counts[0] == counts[1] else 0.0)
    assert result["preferred"]["before"]["judge_vowels"]["mean"] == pytest.approx(sum(shares) / 4)


def test_a_model_without_a_template_has_no_system_prompt():
    settings = AgentSettings()
    encoder = prompt_encoder(byte_tokenizer(), settings.turn_separator, settings.max_prompt_length)
    with pytest.raises(
        UserError, match="a system prompt needs a model with a chat template; this one separates turns by"
    ):
        ChatAgent(Policy(gpt2()).eval(), encoder, settings).with_system_prompt("Be brief .")


def test_the_kl_of_the_best_of_two_is_that_of_the_chosen_replies():
    """Their log ratio by a forward pass over each, and the bound log 2 - 1/2; not the KL of replies that nobody chose."""
    prompts = [Dialogue([text]) for text in ("Hello .", "Where is it ?", "No .", "A table , please .")]
    agent, start = chat_agent(1, None), chat_agent(0, None)
    compared = Comparison({"after": agent, "before": start}, prompts, Judges(Scorer(Vowels())), Sampling(9), seed=3)
    found = compared.run([], best_of=(2,), bias_prompts=BiasPrompts(prompts, prompts))["sweep"]
    assert found["before, best of 2"]["kl_reply"]["mean"] == pytest.approx(math.log(2) - 0.5)
    draws = [generate_replies(agent, prompts, Sampling(9), seed).dialogues for seed in (3, 4)]
    ratios = []
    for both in zip(*draws, strict=True):
        best = max(both, key=lambda reply: sum(letter in "aeiou" for letter in reply.response))
        ids = agent.encoder.encode_reply(best.response)
        if best.truncated:
            ids = ids[:-1]
        context = agent.encoder.encode_prompt(best.prompt_turns)
        with torch.no_grad():
            ours, theirs = (
                speaker.policy.lm(torch.tensor([context + ids])).logits[0, len(context) - 1 : -1].log_softmax(-1)
                for speaker in (agent, start)
            )
        ratios.append(float((ours - theirs)[range(len(ids)), ids].sum()))
    expected = sum(ratios) / len(prompts) + math.log(2) - 0.5
    assert found["after, best of 2"]["kl_reply"]["mean"] == pytest.approx(expected, abs=1e-5)


def test_the_best_of_several_replies_is_drawn_once_for_all_counts(monkeypatch):
    prompts = [Dialogue([text]) for text in ("Hello .", "Where is it ?", "No .", "A table , please .")]
    agent, seeds = chat_agent(0, None), []

    def generate(speaker, prompts, sampling, seed, *rest):
        seeds.append(seed)
        return generate_replies(speaker, prompts, sampling, seed)

    monkeypatch.setattr("rlhf_dialog.evaluation.replies.generate_replies", generate)
    compared = Comparison({"metrics": agent}, prompts, Judges(Scorer(Vowels())), Sampling(9), seed=3)
    result = compared.run([], best_of=(2, 4))
    assert seeds == [3, 4, 5, 6]  # the agent's own replies are the first of them
    counts = []
    for seed in (3, 4, 5, 6):
        dialogues = generate_replies(agent, prompts, Sampling(9), seed).dialogues
        counts.append([sum(letter in "aeiou" for letter in dialogue.response) for dialogue in dialogues])
    for count in (2, 4):
        wanted = sum(max(column) for column in zip(*counts[:count], strict=True)) / len(prompts)
        assert result["sweep"][f"metrics, best of {count}"]["score"]["mean"] == pytest.approx(wanted)


START = [{"n": 1, "kl": 0.0, "score": 1.0}, {"n": 2, "kl": 0.19, "score": 1.5}, {"n": 8, "kl": 1.2, "score": 2.5}]


def row(kl, score):
    return {"kl_reply": {"mean": kl}, "score": {"mean": score}, "other": {"mean": 0.0}}


def test_the_curves_hold_one_reply_and_the_best_of_several():
    result = {"before": row(0.0, 1.0), "after": row(0.5, 2.0), "sweep": {"before, best of 2": row(0.19, 1.5)}}
    assert points(result, (2, 4), ["judge", "other"]) == {
        "before": [{"n": 1, "kl": 0.0, "score": 1.0, "other": 0.0}, {"n": 2, "kl": 0.19, "score": 1.5, "other": 0.0}],
        "after": [{"n": 1, "kl": 0.5, "score": 2.0, "other": 0.0}],
    }


@pytest.mark.parametrize(
    ("value", "n"), [(0.9, 0.0), (1.0, 1.0), (1.25, math.sqrt(2)), (1.5, 2.0), (2.0, 4.0), (2.5, 8.0), (2.6, math.inf)]
)
def test_between_two_points_the_curve_is_straight_in_the_logarithm(value, n):
    assert equal_n(START, "score", value) == pytest.approx(n)


@pytest.mark.parametrize(
    ("score", "words"), [(2.0, "the best of 4.0"), (0.5, "less than one reply"), (3.0, "more than the best of 8")]
)
def test_one_sentence_for_each_measure(score, words):
    curves = {"before": START, "after": [{"n": 1, "kl": math.log(4) - 0.75, "score": score}]}
    assert worth(curves) == [f"by score the agent is worth {words} of its start's, at the KL of the best of 4.0"]


def test_the_figure_is_a_png(tmp_path):
    plot_frontier({"before": START, "after": [{"n": 1, "kl": 0.6, "score": 2.0}]}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_kl_of_the_best_of_n():
    """log 2 - 1/2, log 4 - 3/4; and back."""
    assert best_of_n_kl(1) == 0
    assert [best_of_n_kl(n) for n in (2, 4)] == pytest.approx([0.693147 - 0.5, 1.386294 - 0.75], abs=1e-6)
    assert [n_with_kl(kl) for kl in (0.193147, 0.636294)] == pytest.approx([2, 4], abs=1e-4)
    assert n_with_kl(0) == n_with_kl(-0.1) == pytest.approx(1)


@pytest.mark.parametrize("packing", [True, False])
def test_the_kl_before_each_token_of_the_agents_replies(packing):
    agent, start = agent_of(gpt2(1), packing), agent_of(gpt2(0), packing)
    answers = generate_replies(agent, PROMPTS, agent.sampling, 3, 3)
    answers.dialogues[1] = answers.dialogues[1].with_reply("No .", truncated=False)
    found = kl_by_token(agent, start, answers, batch_size=3)
    for row, dialogue in zip(found, answers.dialogues, strict=True):
        ids, wanted = agent.encoder.encode_prompt(dialogue.prompt_turns), []
        said = agent.encoder.encode_reply(dialogue.response)
        for token in said[:-1] if dialogue.truncated else said:
            with torch.no_grad():
                ours, theirs = (
                    one.policy.lm(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for one in (agent, start)
                )
            wanted.append(float((ours.exp() * (ours - theirs)).sum()))
            ids = [*ids, token]
        assert row[: len(wanted)].tolist() == pytest.approx(wanted, abs=1e-9)
        assert np.isnan(row[len(wanted) :]).all()
    assert any(dialogue.truncated for dialogue in answers.dialogues)


def test_a_separator_of_six_tokens_is_not_among_those_of_a_truncated_reply():
    agent, start = agent_of(gpt2(1)), agent_of(gpt2(0))
    tokenizer = byte_tokenizer(separator_token=False)
    for speaker in (agent, start):
        speaker.encoder = PromptEncoder(tokenizer, "<EOU>", 99)
    replies = [PROMPTS[0].with_reply("Yes.", truncated=cut) for cut in (True, False)]
    kl = kl_by_token(agent, start, Replies(replies, [5, 11]))
    for row, text in zip(kl, (" Yes.", " Yes. <EOU>"), strict=True):
        ids, expected = tokenizer("Hello . <EOU>").input_ids, []
        for token in tokenizer(text).input_ids:
            with torch.no_grad():
                logprobs, reference = (
                    speaker.policy.lm(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for speaker in (agent, start)
                )
            expected.append(float((logprobs.exp() * (logprobs - reference)).sum()))
            ids.append(token)
        assert row[np.isfinite(row)].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_log_ratio_of_a_reply_is_that_of_its_tokens(temperature):
    agent, start = agent_of(gpt2(1)), agent_of(gpt2(0))
    replies = [PROMPTS[0].with_reply("Yes.", truncated=True), PROMPTS[1].with_reply("Of course . It is late .")]
    found = log_ratios(agent, start, Replies(replies, [5, 20]), batch_size=1, temperature=temperature)
    for ratio, dialogue in zip(found, replies, strict=True):
        ids, expected = agent.encoder.encode_prompt(dialogue.prompt_turns), 0.0
        tokens = agent.encoder.encode_reply(dialogue.response)
        for token in tokens[:-1] if dialogue.truncated else tokens:
            with torch.no_grad():
                logits = [
                    speaker.policy.lm(torch.tensor([ids])).logits[0, -1] / temperature for speaker in (agent, start)
                ]
            expected += float(logits[0].log_softmax(-1)[token] - logits[1].log_softmax(-1)[token])
            ids = [*ids, token]
        assert ratio == pytest.approx(expected, abs=1e-5)


def test_the_kl_by_position_is_the_mean_of_those_that_reach_it():
    assert by_position(np.array([[1.0, 3.0, np.nan], [2.0, np.nan, np.nan]])) == [
        {"kl": 1.5, "replies": 2},
        {"kl": 3.0, "replies": 1},
    ]
