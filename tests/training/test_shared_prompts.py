"""A prompt that several responses share is computed once; the step is that of prompts computed for each response."""

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training import checks
from rlhf_dialog.training import episodes as episodes_module
from tests.parts.plain import compute_in_float64
from tests.parts.steps import LR, distance, one_step
from tests.parts.tiny import gpt2, llama
from tests.parts.trainers import make_trainer

SOME = [
    ({"advantage_estimator": "gae", "use_share_model": True, "per_device_microbatch_size": 6, "top_k": 9}, gpt2),
    ({"advantage_estimator": "gae", "use_share_model": False, "per_device_microbatch_size": 4}, llama),
    ({"advantage_estimator": "rloo", "per_device_microbatch_size": 4}, gpt2),
    ({"advantage_estimator": "grpo", "kl_in": "loss", "kl_coef": 0.3, "per_device_microbatch_size": 6}, gpt2),
]


def ready(keys, new_lm=gpt2):
    """A trainer in float64 with heads that are not 0, which descends with plain SGD in one minibatch."""
    sizes = {"num_responses_per_prompt": 3, "rollout_batch_size": 12, "num_mini_batch": 1, "ppo_epoch": 1}
    trainer = make_trainer(
        ref_seed=3, ref_model="another", double=True, lr=LR, critic_lr=LR, new_lm=new_lm, **sizes, **keys
    )
    for engine in trainer.engines.values():
        if head := getattr(engine.module, "value_head", None):
            head.weight.data += torch.arange(head.weight.numel()).sin() / 10
            head.bias.data += 0.3
        engine.optimizer = torch.optim.SGD(engine.module.parameters(), lr=LR)
    return trainer


def unshared(prompts, dialogues):
    return torch.arange(len(prompts))


@pytest.mark.parametrize(("keys", "new_lm"), SOME)
def test_the_step_is_that_of_prompts_computed_for_each_response(monkeypatch, keys, new_lm):
    compute_in_float64(monkeypatch)
    computed, pack = [], TokenBatch._pack

    def counted(*args, **options):
        computed.append(pack(*args, **options))
        return computed[-1]

    monkeypatch.setattr(TokenBatch, "_pack", counted)
    monkeypatch.setattr(checks, "ROWS", 0)  # its measure reads each row alone
    found = one_step(ready(keys, new_lm))
    num_shared = sum(len(packed.ids) for packed in computed)
    computed.clear()
    monkeypatch.setattr(episodes_module, "prompt_group_ids", unshared)
    expected = one_step(ready(keys, new_lm))
    assert num_shared < 0.8 * sum(len(packed.ids) for packed in computed)
    for name in ("gradients", "moved"):
        assert distance(found[name], expected[name]) <= 1e-12
    for name, value in expected["metrics"].items():
        if name.startswith(("objective/", "ppo/")):
            assert found["metrics"][name] == pytest.approx(value, rel=1e-10, abs=1e-12, nan_ok=True), name


def test_which_prompts_are_shared():
    """Equal prompts of one group; without a group in `meta` none is."""

    groups = [0, 0, 1, 0, 2, None, None]
    prompts = [[5, 6], [5, 6], [5, 6], [5], [7], [8], [8]]
    dialogues = [Dialogue(["a"], meta={} if group is None else {"group": group}) for group in groups]
    assert episodes_module.prompt_group_ids(prompts, dialogues).tolist() == [0, 0, 2, 3, 4, 5, 6]
