"""Sizes that are `auto`: measured on a GPU before the first rollout."""

import logging

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models import generation
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.training.size_trial import add_gradients, largest_that_fits, settle_sizes
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


def new_trainer(path, device, **keys):
    config = settings(model_path=path, **{**FEW, **keys})
    models = load_models(config, device)
    return PPOTrainer(config, models, PROMPTS, Places(), VecInfo(), World(device=device))


def sizes_of(trainer):
    """Those of a rollout and of a microbatch, as every part of the trainer has them."""
    limits = trainer.responder.limits
    assert limits.prompts_at_once == trainer.update.microbatch_size
    assert trainer.asked_sizes == [limits.rows_at_once, limits.prompts_at_once]
    return limits.rows_at_once, limits.prompts_at_once


@pytest.mark.parametrize(
    ("free", "most", "size"), [(412, 100, 32), (411, 100, 16), (10**6, 100, 128), (10**6, 64, 64), (0, 100, 1)]
)
def test_the_largest_power_of_two_on_the_line(monkeypatch, free, most, size):
    """100 bytes are held, and a pass takes 50 and 10 for each row: 370 for 32 rows, .9 of 412."""
    peaks, tried = [0], []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 10**9))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peaks[-1])
    assert largest_that_fits("x", lambda n, sizes: (tried.append(n), peaks.append(150 + 10 * n)), most) == size
    assert tried == [1, 2, 4, size]


@pytest.mark.slow
def test_a_measurement_changes_nothing(path, caplog):
    keys = {"num_responses_per_prompt": 4, "use_lora": True, "top_p": 0.9}
    caplog.set_level(logging.INFO, logger="rlhf_dialog")
    with pretended_gpu():
        trainer, plain = (new_trainer(path, CUDA, **keys) for _ in range(2))
        state = torch.get_rng_state()
        keys = settle_sizes(trainer)
        assert keys == {"per_device_microbatch_size": 16, "per_device_rollout_size": 32}  # as config.yaml has them
        assert sizes_of(trainer) == (32, 16)  # of 24 responses, 12 of a minibatch
        lines = [message.split(",")[0] for message in caplog.messages if message.startswith("per_device")]
        assert lines == ["per_device_microbatch_size: 16", "per_device_rollout_size: 32"]
        assert torch.equal(torch.get_rng_state(), state)
        assert trainer.sizes.rows == {}
        assert all(p.grad is None for engine in trainer.engines.values() for p in engine.trained.values())
        same = [trainer.step()["ppo/loss"]]
        torch.set_rng_state(state)
        assert same == [plain.step()["ppo/loss"]]


def test_a_microbatch_is_measured_beside_the_gradients_of_another(path, monkeypatch):
    trainer, forward_backward, seen = new_trainer(path, CPU), PPOUpdate.forward_backward, []

    def has_gradients():
        return any(p.grad is not None for engine in trainer.engines.values() for p in engine.trained.values())

    def watched(*args, **options):
        seen.append(has_gradients())
        return forward_backward(*args, **options)

    monkeypatch.setattr(PPOUpdate, "forward_backward", watched)
    add_gradients(trainer, 2, PartSizes())
    assert seen == [False, True]
    assert not has_gradients()


@pytest.mark.slow
def test_numbers_stay_and_a_cpu_keeps_its_defaults(path):
    trainer = new_trainer(path, CPU)
    assert settle_sizes(trainer) == {}
    assert sizes_of(trainer) == (128, 16)
    with pretended_gpu():
        trainer = new_trainer(path, CUDA, per_device_microbatch_size=3)
        settle_sizes(trainer)
    assert sizes_of(trainer) == (32, 3)


@pytest.mark.slow
def test_what_does_not_fit_is_halved_and_all_ranks_take_the_least(path, monkeypatch):
    with pretended_gpu():
        trainer = new_trainer(path, CUDA)
        write = failing_above(4, generation.write_tokens, lambda *given: len(given[4]))
        gradient = failing_above(2, PPOUpdate.forward_backward, lambda update, microbatch, *_: len(microbatch.tokens))
        monkeypatch.setattr(generation, "write_tokens", write)
        monkeypatch.setattr(PPOUpdate, "forward_backward", gradient)
        monkeypatch.setattr(World, "gather", lambda self, x: [x, 3])
        settle_sizes(trainer)
    assert sizes_of(trainer) == (3, 2)


def failing_above(most, function, rows_of):
    def fail(*args, **options):
        if rows_of(*args) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return function(*args, **options)

    return fail
