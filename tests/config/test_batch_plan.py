"""The batch plan: prompts, responses, minibatches and optimizer steps by hand and by its definition."""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_dialog.config.batch_plan import BatchPlan, batch_plan
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from tests.parts.yaml_files import SMALL


def plan(text: str, write) -> BatchPlan:
    return batch_plan(load_config(write(SMALL + text)))


def test_batch_plan_of_the_document(write):
    """128 * 5 / 20 = 32 responses; 20 minibatches of 32 are 12 of 2 and 8 of 1; 5 epochs make 100 steps."""
    found = plan("", write)
    assert (found.num_prompts, found.num_responses, found.num_minibatches, found.num_optimizer_steps) == (
        32,
        32,
        20,
        100,
    )
    assert "20 minibatches asked, 32 responses: 12 of 2 and 8 of 1" in found.text
    assert "128" in found.text


@pytest.mark.parametrize(
    ("text", "line", "fits"),
    [
        ("", "32 responses and 100 optimizer steps an iteration", False),
        (
            "rollout_batch_size: 1\nnum_mini_batch: 1\nppo_epoch: 1",
            "1 response and 1 optimizer step an iteration",
            True,
        ),
        (
            "rollout_batch_size: 64\nnum_responses_per_prompt: 4\nnum_mini_batch: 4\nppo_epoch: 1",
            "64 responses (4 to each of 16 prompts) and 4 optimizer steps an iteration",
            True,
        ),
        (
            "num_responses_per_prompt: 3\nnum_mini_batch: 3\nppo_epoch: 1",
            "33 responses (3 to each of 11 prompts) and 3 optimizer steps an iteration",
            False,
        ),
    ],
)
def test_the_plan_in_a_line_and_whether_it_fits(write, text, line, fits):
    found = plan(text, write)
    assert (found.line, found.fits) == (line, fits)


@pytest.mark.parametrize(
    ("text", "numbers", "words"),
    [
        ("rollout_batch_size: 13", (13, 13, 13, 65), "20 minibatches asked, 13 responses: 13 of 1"),
        ("rollout_batch_size: 64\nnum_mini_batch: 4\nppo_epoch: 2", (64, 64, 4, 8), "4 of 16"),
        ("max_new_tokens: 48\nnum_mini_batch: 3", (14, 14, 3, 15), "2 of 5 and 1 of 4"),  # 640 / 48 = 13.3
        ("max_new_tokens: 1000", (1, 1, 1, 5), "1 of 1"),
        ("rollout_batch_size: 1\nppo_epoch: 1", (1, 1, 1, 1), "1 epoch x 1 minibatch = 1 optimizer step an iteration"),
        ("rollout_batch_size: 16\nnum_mini_batch: 2", (16, 16, 2, 10), "5 epochs x 2 minibatches = 10 optimizer steps"),
        ("advantage_estimator: grpo\nrollout_batch_size: 16\nnum_mini_batch: 2", (4, 16, 2, 10), "4 for each of 4"),
        (
            "advantage_estimator: rloo\nnum_responses_per_prompt: 3\nnum_mini_batch: 2",
            (11, 33, 2, 10),
            "1 of 17 and 1 of 16",
        ),
        ("advantage_estimator: reinforce_pp\nrollout_batch_size: 5\nnum_mini_batch: 5", (5, 5, 5, 25), "5 of 1"),
        ("num_responses_per_prompt: 2\nrollout_batch_size: 6\nnum_mini_batch: 6", (3, 6, 6, 30), "2 for each of 3"),
    ],
)
def test_batch_plan_by_hand(write, text, numbers, words):
    found = plan(text, write)
    assert (found.num_prompts, found.num_responses, found.num_minibatches, found.num_optimizer_steps) == numbers
    assert words in found.text


@given(
    length=st.integers(1, 300), env_num=st.integers(1, 9), new=st.integers(1, 60), per_prompt=st.integers(2, 5),
    asked=st.integers(1, 40),
)  # fmt: skip
@settings(max_examples=60)
def test_batch_plan_covers_the_tokens_and_shares_out_whole_groups(length, env_num, new, per_prompt, asked):
    sizes = {"episode_length": length, "env_num": env_num, "max_new_tokens": new, "num_mini_batch": asked}
    config = Config.model_validate(
        yaml.safe_load(SMALL) | sizes | {"advantage_estimator": "rloo", "num_responses_per_prompt": per_prompt}
    )
    found = batch_plan(config)
    assert found.num_responses == found.num_prompts * per_prompt
    assert found.num_responses * new >= length * env_num  # enough tokens
    assert (found.num_responses - per_prompt) * new < length * env_num  # and not one prompt more
    assert found.num_minibatches == min(asked, found.num_responses)
    listed = [(int(count), int(size)) for count, size in re.findall(r"(\d+) of (\d+)", found.text.splitlines()[1])]
    assert sum(count * size for count, size in listed) == found.num_responses
    assert sum(count for count, _ in listed) == found.num_minibatches
    assert max(size for _, size in listed) - min(size for _, size in listed) <= 1


def test_more_responses_than_any_machine_can_hold(write):
    with pytest.raises(
        UserError, match=r"are 2000000 responses an iteration, but at most 1000000 .* set rollout_batch_size"
    ):
        plan("episode_length: 1000000\nenv_num: 2\nmax_new_tokens: 1", write)
