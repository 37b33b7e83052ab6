"""Sizes that choose themselves: by the forecast for a GPU's free memory, tried before the first rollout."""

import logging
from dataclasses import replace

import pytest
import torch

from rlhf_dialog.distributed.memory import chosen_sizes
from rlhf_dialog.distributed.memory.chosen_sizes import choose_sizes, fitting_batch, largest_power
from rlhf_dialog.distributed.memory.forecast import forecast, read_sizes
from rlhf_dialog.distributed.memory.setting import memory_setting
from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models import generation
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.runs.identity import begun_sizes
from rlhf_dialog.training.size_trial import try_sizes
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.training.update import PPOUpdate
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.saved_models import save
from tests.parts.tiny import gpt2
from tests.parts.trainers import PROMPTS, Places
from tests.parts.yaml_files import settings

CPU = torch.device("cpu")
FEW = {"rollout_batch_size": 24, "num_mini_batch": 2, "max_new_tokens": 4, "max_prompt_length": 12, "ppo_epoch": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models") / "gpt2", gpt2(n_layer=1, n_embd=16))


def chosen(path, monkeypatch, free, world=None, **keys):
    """The configuration after the choice on a GPU with `free` bytes."""
    monkeypatch.setattr(chosen_sizes, "free_on_gpu", lambda device: free)
    config = settings(model_path=path, **{**FEW, **keys})
    world = world or World(device=CUDA)
    choose_sizes(config, world, memory_setting(config, world.size, on_cuda=world.device.type == "cuda"))
    return config


def test_the_largest_power_of_two_that_fits():
    assert [largest_power(top, lambda size: True) for top in (1, 2, 5, 64)] == [1, 2, 8, 64]
    assert [largest_power(100, lambda size, most=most: size <= most) for most in (0, 1, 50, 64)] == [1, 1, 32, 64]


def test_a_gpu_with_room_computes_all_rows_at_once(path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="rlhf_dialog")
    config = chosen(path, monkeypatch, 10**12)
    assert (config.per_device_rollout_size, config.per_device_microbatch_size) == (32, 32)  # of 24 responses
    assert "per_device_microbatch_size 32, per_device_rollout_size 32" in caplog.text


@pytest.mark.parametrize(("size", "left"), [(1, 0.9), (2, 0.75)], ids=["alone", "of two"])
def test_a_tenth_of_the_memory_stays_free_and_a_quarter_beside_others(path, monkeypatch, size, left):
    """What the passes of a sixth of the responses need is there, and a byte less."""
    keys = {"per_device_rollout_size": 4, "num_mini_batch": 1}
    world = World(size=size, device=CUDA)
    monkeypatch.setattr(World, "gather", lambda self, x: [x])
    config, microbatch = settings(model_path=path, **{**FEW, **keys}), 4 // size
    setting = memory_setting(config, size, on_cuda=True)
    found = forecast(*read_sizes(config), replace(setting, microbatch=microbatch, rows_at_once=4))
    enough = max(found.bytes_in("scoring"), found.bytes_in("update")) / left
    assert chosen(path, monkeypatch, enough + 2, world, **keys).per_device_microbatch_size == microbatch
    assert chosen(path, monkeypatch, enough - 2, world, **keys).per_device_microbatch_size < microbatch


def test_all_ranks_take_the_least(path, monkeypatch):
    monkeypatch.setattr(World, "gather", lambda self, x: [x, 4])
    config = chosen(path, monkeypatch, 10**12)
    assert (config.per_device_rollout_size, config.per_device_microbatch_size) == (4, 4)


def test_numbers_stay_and_a_cpu_keeps_its_defaults(path, monkeypatch):
    config = chosen(path, monkeypatch, 10**12, per_device_microbatch_size=3)
    assert (config.rollout_size, config.microbatch_size) == (32, 3)
    config = chosen(path, monkeypatch, 10**12, World(device=CPU))
    assert (config.per_device_rollout_size, config.rollout_size, config.microbatch_size) == ("auto", 128, 16)


def test_a_resumed_run_keeps_its_sizes_unless_the_configuration_has_numbers():
    before = {"asked": [32, 8], "rows": {}}
    assert begun_sizes(settings(), before) == {"per_device_rollout_size": 32, "per_device_microbatch_size": 8}
    assert begun_sizes(settings(per_device_rollout_size=5), before) == {"per_device_microbatch_size": 8}
    assert begun_sizes(settings(), None) == begun_sizes(settings(), {}) == {}


def new_trainer(path, device, **keys):
    config = settings(model_path=path, **{**FEW, **keys})
    models = load_models(config, device)
    return PPOTrainer(config, models, PROMPTS, Places(), VecInfo(), World(device=device))


@pytest.mark.parametrize(
    "keys",
    [
        {"use_share_model": True},
        {"top_p": 0.9, "kl_in": "loss", "per_device_microbatch_size": 4},
        {"num_responses_per_prompt": 4, "use_lora": True},
    ],
)
def test_a_trial_changes_nothing(path, keys):
    trainer, plain = (new_trainer(path, CPU, **keys) for _ in range(2))
    state = torch.get_rng_state()
    try_sizes(trainer)
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.sizes.rows == {}
    assert all(p.grad is None for engine in trainer.engines.values() for p in engine.trained.values())
    same = [trainer.step()["ppo/loss"]]
    torch.set_rng_state(state)
    assert same == [plain.step()["ppo/loss"]]


@pytest.mark.slow
def test_tokens_and_gradients_are_the_same_for_all_sizes(path):
    steps = []
    for rows, microbatch in ((32, 32), (4, 2), (1, 1)):
        keys = {
            "per_device_rollout_size": rows,
            "per_device_microbatch_size": microbatch,
            "num_responses_per_prompt": 2,
        }
        torch.manual_seed(5)
        trainer = new_trainer(path, CPU, **keys)
        metrics = trainer.step()
        weights = torch.cat([p.detach().flatten() for p in trainer.models.policy.parameters()])
        steps.append((trainer.rollout.tokens.response_ids, metrics["ppo/grad_norm"], weights))
    for ids, norm, weights in steps[1:]:
        assert torch.equal(ids, steps[0][0])
        assert norm == pytest.approx(steps[0][1], rel=1e-5)
        torch.testing.assert_close(weights, steps[0][2], rtol=0, atol=1e-7)


def test_an_evaluation_answers_as_many_prompts_as_fit(path, monkeypatch):
    sampling, agent = Sampling(4), ChatAgent.load(path)
    assert fitting_batch(agent, sampling) == 64
    with pretended_gpu():
        agent.policy.to(CUDA)
        found = []
        for free in (10**12, 10**7, 10**6, 1):
            monkeypatch.setattr(chosen_sizes, "free_on_gpu", lambda device, free=free: free)
            found.append(fitting_batch(agent, sampling))
    assert found[0] == 1024 > found[1] > found[2] > found[3] == 1


def failing_above(most, function, rows_of):
    """`function`, for which there is no memory for more than `most` rows."""

    def fail(*args, **options):
        if rows_of(*args) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return function(*args, **options)

    return fail


@pytest.mark.slow
def test_what_does_not_fit_is_halved_on_every_rank(path, monkeypatch):
    with pretended_gpu():
        trainer = new_trainer(path, CUDA, per_device_rollout_size=16, per_device_microbatch_size=8)
        decode = failing_above(4, generation.new_decoder, lambda policy, prompts, *_: len(prompts))
        gradient = failing_above(2, PPOUpdate.forward_backward, lambda update, microbatch, *_: len(microbatch.tokens))
        monkeypatch.setattr(generation, "new_decoder", decode)
        monkeypatch.setattr(PPOUpdate, "forward_backward", gradient)
        try_sizes(trainer)
    assert (trainer.sizes.limit("generation", 16), trainer.sizes.limit("update", 8)) == (4, 2)
