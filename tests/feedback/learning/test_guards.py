"""The guards: zero for the first version itself, against plain loops for another, and what is within a limit."""

import math

import pytest
import torch

from rlhf_dialog.feedback.learning import guards as guards_module
from rlhf_dialog.feedback.learning.guards import measure_guards
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.store.examples import heldout_set, read_examples
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.models.responder import Reply
from rlhf_dialog.runs.services.guard import GuardLimit
from tests.parts.taught_bots import new_bot, set_keys, talk_to
from tests.parts.tiny import write_data


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    bot = new_bot(tmp_path_factory.mktemp("guards"))
    talk_to(bot, 40)
    return bot


def measured_by(bot, change=0.0, replies=None, monkeypatch=None, **keys):
    set_keys(bot, **keys)
    learner = Learner(bot, read_settings(bot.settings_path))
    with torch.no_grad():
        for seed, parameter in enumerate(learner.parameters):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.add_(change * noise)
    if replies is not None:
        turns = iter(replies)
        monkeypatch.setattr(guards_module, "sample_replies", lambda *_: next(turns))
    store = bot.store()
    heldout = heldout_set(read_examples(store), learner.settings)
    store.close()
    return learner, heldout, measure_guards(learner, heldout)


def test_the_first_version_has_lost_nothing(bot, tmp_path):
    data = str(write_data(tmp_path / "data", 6))
    found = measured_by(bot, sft_data_path=data)[2]
    assert [round(guard.value, 5) for guard in found] == [0, 1, 0]
    assert len(measured_by(bot)[2]) == 2  # without a validation split


def test_the_divergence_of_given_replies(bot, monkeypatch):
    """The same replies of both: their log-ratio per token, with a plain loop; two bigrams of three are distinct in both."""
    given = [
        Reply("a b a b", [40, 41, 257], False),
        Reply("c", [50], True),
        Reply("", [], False),
        Reply("d", [60, 257], False),
    ]
    learner, heldout, found = measured_by(bot, 0.05, [given, given], monkeypatch, guard_prompts=4)
    prompts = guards_module.distinct_prompts(heldout, learner.settings, 5)
    total = count = 0
    with torch.no_grad():
        for prompt, reply in zip(prompts, given, strict=True):
            ids = learner.encoder.encoder.encode_prompt(prompt.prompt_turns)
            whole = torch.tensor([ids + reply.ids])
            ours, theirs = (
                policy.lm(whole).logits[0].log_softmax(-1) for policy in (learner.policy, learner.reference_policy)
            )
            for i, token in enumerate(reply.ids):
                total += (ours - theirs)[len(ids) - 1 + i, token].item()
                count += 1
    assert found[0].value == pytest.approx(total / count, abs=1e-5)
    assert abs(found[0].value) > 1e-3
    assert found[1].value == 1


def test_fewer_distinct_bigrams(bot, monkeypatch):
    ours, theirs = ([Reply(text, [40], False)] * 4 for text in ("a a a a a", "a b c d"))
    found = measured_by(bot, 0, [ours, theirs], monkeypatch, min_distinct_2=0.5, guard_prompts=4)[2][1]
    assert found.value == pytest.approx((1 / 16) / (3 / 12))
    assert not found.passed


def test_a_worse_language_model_has_a_higher_perplexity(bot, tmp_path):
    data = str(write_data(tmp_path / "data", 6))
    found = measured_by(bot, 0.3, sft_data_path=data, max_perplexity_rise=0.05)[2][2]
    assert found.value > 0.05
    assert not found.passed


@pytest.mark.parametrize(
    ("value", "at_most", "passed"),
    [(1.0, True, True), (1.1, True, False), (1.0, False, True), (0.9, False, False), (math.nan, True, False)],
)
def test_within_the_limit(value, at_most, passed):
    guard = GuardLimit("x", value, 1.0, at_most)
    assert guard.passed is passed
    assert ("FAILED" in str(guard)) is not passed
    assert guard.as_json()["value"] == (None if math.isnan(value) else value)
