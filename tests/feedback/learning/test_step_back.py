"""A night that moved too far from the first version: which part of its change is left."""

import pytest
import torch

from rlhf_dialog.feedback.learning.guards import GuardMeasurement
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.step_back import step_back
from rlhf_dialog.feedback.store.examples import Examples, RatedAnswer
from rlhf_dialog.feedback.store.settings import read_settings
from tests.parts.taught_bots import new_bot, set_keys

RATED = Examples([RatedAnswer((f"Hello {n} .",), "Why ?", True, "thumb", "p", "d", n) for n in range(1, 9)], [])


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    return new_bot(tmp_path_factory.mktemp("limit"))


def moved_learner(bot, max_kl, size=0.5, **keys):
    set_keys(bot, max_kl=max_kl, guard_prompts=8, **keys)
    learner = Learner(bot, read_settings(bot.settings_path))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.add_(size * torch.randn(parameter.shape, generator=noise))
    return learner, [parameter.detach().clone() for parameter in learner.parameters]


def kl_of(learner):
    return GuardMeasurement(learner, RATED).measure()[0].value


def test_what_is_within_the_limit_stays_bit_for_bit(bot):
    learner, moved = moved_learner(bot, max_kl=100)
    assert step_back(learner, pytest.fail, GuardMeasurement(learner, RATED)) == 1
    assert all(torch.equal(*pair) for pair in zip(learner.parameters, moved, strict=True))


def test_what_is_beyond_it_keeps_the_largest_share_that_fits(bot):
    """95 % of max_kl; a thirty-second more would be too much. Against weights that are mixed here."""
    learner, moved = moved_learner(bot, max_kl=100)
    limit = kl_of(learner) / 3
    learner, moved = moved_learner(bot, max_kl=limit / 0.95)
    first = [parameter.detach().clone() for parameter in Learner(bot, learner.settings).parameters]
    share = step_back(learner, lambda: Learner(bot, learner.settings), GuardMeasurement(learner, RATED))
    assert 0 < share < 1
    assert (share * 32).is_integer()
    mixed = [(1 - share) * old + share * new for old, new in zip(first, moved, strict=True)]
    for found, wanted in zip(learner.parameters, mixed, strict=True):
        torch.testing.assert_close(found, wanted)
    assert kl_of(learner) <= limit
    with torch.no_grad():
        for parameter, old, new in zip(learner.parameters, first, moved, strict=True):
            parameter.copy_(old + (share + 1 / 32) * (new - old))
    assert kl_of(learner) > limit


@pytest.mark.parametrize("use_lora", [False, True])
def test_a_champion_beyond_the_limit_goes_back_towards_the_first_version(bot, use_lora):
    if use_lora:
        pytest.importorskip("peft")
    learner, moved = moved_learner(bot, max_kl=100, use_lora=use_lora, lora_r=2)
    limit = kl_of(learner) / 3
    learner, moved = moved_learner(bot, max_kl=limit / 0.95, use_lora=use_lora, lora_r=2)
    champion, _ = moved_learner(bot, max_kl=limit / 0.95, use_lora=use_lora, lora_r=2)
    assert step_back(learner, lambda: champion, GuardMeasurement(learner, RATED)) == 0
    assert kl_of(learner) <= limit
    first = [torch.zeros_like(one) for one in moved] if use_lora else Learner(bot, learner.settings).parameters
    shares = {
        round(((now - old) / (new - old)).median().item(), 4)
        for now, old, new in zip(learner.parameters, first, moved, strict=True)
    }
    assert len(shares) == 1
    assert 0 < min(shares) < 1
