"""The smoke test is the run itself with two prompts; its command line is in whole_runs/test_training.py."""

import pytest

from rlhf_dialog.runs.smoke import two_prompts
from tests.parts.trainers import settings


@pytest.mark.parametrize(("name", "number"), [("gae", 1), ("grpo", 4), ("rloo", 4), ("reinforce_pp", 1)])
def test_the_smoke_test_has_two_prompts_with_every_estimator(name, number):
    small = two_prompts(settings(advantage_estimator=name, rollout_batch_size=40), "folder", 1)
    assert (small.num_responses_per_prompt, small.rollout_batch_size) == (number, 2 * number)
