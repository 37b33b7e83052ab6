"""Products of matrices, the machine they are measured on, and the work of an update."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from benchmarks import products, work
from rlhf_dialog.models.generation import GenerationLimits
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts import tiny
from tests.parts.tiny import gpt2, llama


def trainer_of(lm, epochs=2):
    """Two prompts of 3 and 1 tokens with two responses each, of 1 and 2, and of 3 and 1 tokens; microbatches of two."""
    lengths = [(3, 1), (3, 2), (1, 3), (1, 1)]
    prompts = torch.tensor([[column >= 3 - prompt for column in range(3)] for prompt, _ in lengths])
    responses = torch.tensor([[column < response for column in range(3)] for _, response in lengths])

    tokens = TokenBatch(prompts.long(), prompts, responses.long(), responses, torch.tensor([0, 0, 2, 2]))
    return SimpleNamespace(
        rollout=SimpleNamespace(tokens=tokens),
        models=SimpleNamespace(policy=SimpleNamespace(lm=lm)),
        responder=SimpleNamespace(limits=GenerationLimits(prompts_at_once=1)),
        config=SimpleNamespace(ppo_epoch=epochs),
        update=SimpleNamespace(microbatch_size=2),
    )


@pytest.mark.parametrize("is_trained", [True, False])
def test_the_products_of_an_iteration(is_trained):
    """The prompts are read once; 4, 2 and 1 responses are written on; each pass sees 3 + 1 and 1 + 2 tokens."""
    lm = llama().requires_grad_(is_trained)
    found = products.shapes_of(trainer_of(lm))
    passes = 1 + 2 * (3 if is_trained else 2)
    tokens = Counter({3: 1 + passes, 1: 2, 2: 1, 4: passes}) + Counter({3: 0})
    # of the prompts 3 and 1, of the second and third tokens 2 and 1; of the passes 4 and 3
    trunk = products.trunk_of(lm.base_model)
    expected = Counter()
    for rows, times in tokens.items():
        for shape, count in trunk.items():
            expected[rows, *shape] += count * times
    head = lm.get_output_embeddings()
    for rows, times in {4: 1 + passes, 2: 1, 1: 1, 3: passes}.items():
        expected[rows, head.in_features, head.out_features] += times
    assert found == expected


def test_the_layers_that_every_token_passes():
    """GPT-2 of two layers of width 32: queries, keys and values together, and a network of four times the width."""
    found = products.trunk_of(gpt2().base_model)
    assert sum(count * rows * columns for (rows, columns), count in found.items()) == 2 * 12 * 32 * 32


def test_the_time_is_that_of_all_products(monkeypatch):
    monkeypatch.setattr(products, "_timed", lambda call: float(call().shape[0]))
    shapes = Counter({(5, 8, 4): 3, (2, 8, 16): 10})
    assert products.seconds_of(shapes, torch.device("cpu"), torch.float32) == 3 * 5 + 10 * 2


def test_the_least_work_of_an_update():
    lm = tiny.gpt2()  # 2 layers of width 32, 259 tokens
    config = SimpleNamespace(ppo_epoch=5)
    trainer = SimpleNamespace(models=SimpleNamespace(policy=SimpleNamespace(lm=lm), critic=None), config=config)
    laps = [work.Lap(0.0, 0, [3, 4], [2, 1], 0.0), work.Lap(0.0, 0, [3, 4], [2, 1], 0.0)]
    trunk, attention, head = 2 * (12 * 32 * 32 * 2) * 10, 2 * 2 * 32 * (25 + 25), 2 * 259 * 32 * 3
    assert work.num_weights(lm.base_model) == 12 * 32 * 32 * 2
    assert work.update_gflop(trainer, laps) == pytest.approx(15 * (trunk + attention + head) / 1e9)
    trainer.models.critic = lm
    assert work.update_gflop(trainer, laps) == pytest.approx(15 * (2 * (trunk + attention) + head) / 1e9)
    assert work.update_speed(60.0, 2.0, 120.0) == {"least_gflop": 60.0, "gflops": 30.0, "share_of_matmul": 0.25}
