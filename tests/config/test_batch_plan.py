"""The batch plan: prompts, responses, minibatches and optimizer steps by hand and by its definition."""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.schema import Config
from tests.parts.yaml_files import SMALL


@pytest.mark.parametrize(
    ("text", "numbers", "notice", "line"),
    [
        # the document's: 128 * 5 / 20 = 32 responses
        ("", (32, 32, 20, 100), "20 minibatches asked, 32 responses: 12 of 2 and 8 of 1", "32 responses and 100"),
        ("rollout_batch_size: 13", (13, 13, 13, 65), "20 minibatches asked, 13 responses: 13 of 1", "13 responses"),
        ("rollout_batch_size: 64\nnum_mini_batch: 4\nppo_epoch: 2", (64, 64, 4, 8), "", "64 responses and 8 o"),
        ("max_new_tokens: 48\nnum_mini_batch: 3", (14, 14, 3, 15), "2 of 5 and 1 of 4", ""),  # 640 / 48 = 13.3
        ("max_new_tokens: 1000", (1, 1, 1, 5), "1 of 1", "1 response and 5 optimizer steps an iteration"),
        ("rollout_batch_size: 1\nnum_mini_batch: 1\nppo_epoch: 1", (1, 1, 1, 1), "", "1 optimizer step an"),
        (
            "advantage_estimator: grpo\nrollout_batch_size: 16\nnum_mini_batch: 2",
            (4, 16, 2, 10),
            "",
            "16 responses (4 to each of 4 prompts) and 10 optimizer steps",
        ),
        ("num_responses_per_prompt: 3\nnum_mini_batch: 2", (11, 33, 2, 10), "1 of 17 and 1 of 16", ""),
        ("num_responses_per_prompt: 3\nnum_mini_batch: 3", (11, 33, 3, 15), "3 of 11", ""),  # 32 were asked for
    ],
)
def test_batch_plan_by_hand(write, text, numbers, notice, line):
    found = batch_plan(load_config(write(SMALL + text)))
    assert (found.num_prompts, found.num_responses, found.num_minibatches, found.num_optimizer_steps) == numbers
    assert (found.notice != "") == (notice != "")
    assert notice in found.notice
    assert line in found.line


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
    listed = [(int(count), int(size)) for count, size in re.findall(r"(\d+) of (\d+)", found.notice)]
    if listed:
        assert sum(count * size for count, size in listed) == found.num_responses
        assert sum(count for count, _ in listed) == found.num_minibatches
        assert max(size for _, size in listed) - min(size for _, size in listed) <= 1
