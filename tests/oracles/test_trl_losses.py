"""The losses and gradients of published recipes are those of TRL's GRPOTrainer on the same batch."""

from dataclasses import replace

import pytest
import torch
from datasets import Dataset

from rlhf_dialog.commands.options import register
from rlhf_dialog.config.registry import LossFactory
from rlhf_dialog.training import ppo
from rlhf_dialog.training.update import Microbatch
from tests.parts.processes import ROOT
from tests.parts.rollouts import with_credit
from tests.parts.tiny import byte_tokenizer, llama
from tests.parts.trainers import collect_next, make_trainer

LENGTH, TEMPERATURE = 7, 0.8
CASES = {  # the keys of a recipe here, and in TRL
    "DAPO": ({"clip_param_high": 0.28}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "GRPO": ({"loss_average": "response"}, {"loss_type": "grpo"}),
    "Dr. GRPO": ({"loss_average": "length"}, {"loss_type": "dr_grpo"}),
    "CISPO": ({"policy_loss": "cispo", "clip_param_high": 0.25}, {"loss_type": "cispo", "epsilon_high": 1.25}),
    "SAPO": ({"policy_loss": "soft_clip", "loss_average": "response"}, {"loss_type": "sapo"}),  # of examples/
    "GSPO": (
        {"ratio": "sequence", "loss_average": "response", "clip_param": 0.04, "clip_param_high": 0.06},
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 0.04, "epsilon_high": 0.06},
    ),
}


def gradient(loss, lm):
    lm.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_trl(name, tmp_path, monkeypatch):
    for table in (LossFactory.classes, LossFactory.formulas):
        monkeypatch.setitem(table, "soft_clip", None)  # which goes when the test ends
    register(str(ROOT / "examples/soft_clip.py"))
    trl = pytest.importorskip("trl")
    ours, theirs = CASES[name]
    small = {"num_mini_batch": 1, "entropy_coef": 0, "kl_coef": 0, "rollout_batch_size": 8, "max_new_tokens": LENGTH}
    keys = {"advantage_estimator": "grpo", "temperature": TEMPERATURE, **small, **ours}
    trainer = make_trainer(new_lm=llama, double=True, **keys)
    collected = collect_next(trainer)
    lm = trainer.models.policy.lm
    mask = collected.response_mask
    tokens = collected.tokens
    assert len({*mask.sum(dim=1).tolist()}) > 1
    torch.manual_seed(4)
    old = collected.logprobs + 0.3 * torch.randn_like(collected.logprobs)
    per_reply = torch.randn(len(collected), dtype=torch.float64)
    weights = ppo.loss_weights(mask, trainer.config.loss_average, LENGTH, old)
    advantages = per_reply.unsqueeze(1).expand_as(old) * mask
    rollout = with_credit(replace(collected, logprobs=old), advantages=advantages, loss_weights=weights)
    ((at, batch),) = tokens.microbatches(len(tokens))
    losses, statistics = trainer.update.losses(Microbatch(rollout, at, batch), mask.sum(), is_first=False)
    assert name == "SAPO" or 0 < statistics["ppo/clip_fraction"] < 1
    found = losses["policy"].item(), gradient(losses["policy"], lm)

    args = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [], "beta": 0.0, "epsilon": 0.2}
    args |= {"temperature": TEMPERATURE, "max_completion_length": LENGTH, "num_generations": 2, **theirs}
    config = trl.GRPOConfig(per_device_train_batch_size=8, gradient_accumulation_steps=1, **args)
    data, tokenizer = Dataset.from_list([{"prompt": "a"}] * 8), byte_tokenizer()
    reward = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
    grpo = trl.GRPOTrainer(lm, reward, config, data, processing_class=tokenizer)
    lm.eval()
    inputs = {"prompt_ids": tokens.prompt_ids, "prompt_mask": tokens.prompt_mask.long()}
    inputs |= {"completion_ids": tokens.response_ids, "completion_mask": mask.long()}
    inputs |= {"advantages": per_reply, "old_per_token_logps": torch.where(mask, old, 0.0)}
    loss = grpo._compute_loss(lm, inputs | {"num_items_in_batch": mask.sum()})
    wanted = gradient(loss, lm)
    assert found[0] == pytest.approx(loss.item(), abs=1e-6)
    assert (found[1] - wanted).norm() < 1e-6 * wanted.norm()
