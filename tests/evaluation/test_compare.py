"""Two agents on the same prompts, and the best of several replies of each."""

from types import SimpleNamespace

import pytest

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.compare import Comparison
from rlhf_dialog.evaluation.measure import Judges
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.tiny import chat_tokenizer, gpt2


def test_what_counts_tokens_is_not_compared_between_two_tokenizers(monkeypatch, caplog):
    def agent(*words: str) -> SimpleNamespace:
        vocabulary = {word: number for number, word in enumerate(words)}
        return SimpleNamespace(encoder=SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary)))

    found = {name: {"mean": 1.0, "low": 0.5, "high": 1.5} for name in ("mean_length", "rouge1")}
    monkeypatch.setattr("rlhf_dialog.evaluation.measure.differences", lambda *_: dict(found))
    for other, expected in ((agent("a"), 1.0), (agent("b"), None)):
        comparison = Comparison({"after": agent("a"), "before": other}, [], Judges(), Sampling())
        difference = comparison._difference(None, None)
        assert difference["mean_length"]["mean"] == expected
        assert difference["rouge1"]["mean"] == 1.0
    assert "different tokenizers" in caplog.text


class Vowels(BaseReward):
    """A judge that counts vowels."""

    name = "vowels"

    def __call__(self, dialogues):
        return [float(sum(letter in "aeiou" for letter in dialogue.response)) for dialogue in dialogues]


ASKED = [Dialogue([text]) for text in ("Hello .", "Where is it ?", "No .", "A table , please .")]


def chat_agent(seed: int, system_prompt: str | None) -> ChatAgent:
    settings = AgentSettings(turn_separator="chat_template", system_prompt=system_prompt, max_new_tokens=9)
    tokenizer = chat_tokenizer()
    encoder = prompt_encoder(tokenizer, "chat_template", settings.max_prompt_length, system_prompt)
    return ChatAgent(Policy(gpt2(seed, vocab_size=261)).eval(), encoder, settings)


def vowels(replies):
    return [sum(letter in "aeiou" for letter in dialogue.response) for dialogue in replies.dialogues]


@pytest.mark.parametrize(("needs", "chooser"), [((), ""), (("reference",), " (reads the reference)")])
def test_the_best_of_several_replies_is_chosen_among_the_agents_own(monkeypatch, needs, chooser):
    agent, seeds = chat_agent(0, None), []
    monkeypatch.setattr(Vowels, "needs", needs)

    def generate(responder, prompts, sampling, seed, *rest):
        seeds.append(seed)
        return generate_replies(responder, prompts, sampling, seed)

    monkeypatch.setattr("rlhf_dialog.evaluation.replies.generate_replies", generate)
    compared = Comparison({"metrics": agent}, ASKED, Judges(Scorer(Vowels())), Sampling(9), seed=3, draws=2, best_of=4)
    result = compared.run([])
    assert seeds == [3, 4, 5, 6]  # none is drawn twice
    counts = [vowels(generate_replies(agent, ASKED, Sampling(9), seed)) for seed in seeds]
    wanted = sum(max(column) for column in zip(*counts, strict=True)) / len(ASKED)
    (name,) = result["sweep"]
    assert name == f"metrics, best of 4{chooser}"
    assert result["sweep"][name]["score"]["mean"] == pytest.approx(wanted)
    assert result["sweep_difference"][name]["score"]["mean"] < 0  # the agent is below its best
    assert {"metrics", "metrics, draw 2"} <= set(compared.answers)
    assert "reference_perplexity" not in result["metrics"]  # nor are there references
    assert result["metrics"]["score"]["mean"] == pytest.approx(sum(counts[0] + counts[1]) / 8)
