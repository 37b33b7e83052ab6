import itertools
import logging
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.hugging_face_trainer import _LossLines, batch_order, num_steps, prepare
from rlhf_dialog.training.supervised.settings import SupervisedKeys


def test_every_epoch_holds_every_example_once():
    lengths = [random.Random(0).randint(5, 90) for _ in range(64)]
    order = batch_order(lengths, SupervisedKeys(epochs=2, batch_size=8))
    assert Counter(order[:64]) == Counter(order[64:]) == Counter(range(64))
    assert order[:64] != order[64:]


def test_batches_hold_similar_lengths_in_no_order_of_length():
    lengths = [random.Random(i).randint(5, 90) for i in range(640)]
    order = batch_order(lengths, SupervisedKeys(epochs=1, batch_size=8))
    batches = [[lengths[i] for i in order[start : start + 8]] for start in range(0, len(order), 8)]
    spread = sum(max(batch) - min(batch) for batch in batches) / len(batches)
    assert spread < 5  # shuffled batches of 8 spread over about 66 of the 85
    means = [sum(batch) for batch in batches]
    rising = sum(a < b for a, b in itertools.pairwise(means)) / len(means)
    assert 0.3 < rising < 0.7


def test_the_number_of_steps():
    assert num_steps(SupervisedKeys(epochs=3, batch_size=32), 320) == 30
    assert num_steps(SupervisedKeys(epochs=0.5, batch_size=32), 320) == 5
    assert num_steps(SupervisedKeys(epochs=1, batch_size=32), 3) == 1
    assert num_steps(SupervisedKeys(epochs=3, max_steps=7), 320) == 7
    for count in (3, 33, 320):
        config = SupervisedKeys(epochs=1.5, batch_size=32)
        assert len(batch_order([1] * count, config)) == 32 * num_steps(config, count)


def test_the_order_comes_from_the_seed():
    lengths = list(range(100))
    first = batch_order(lengths, SupervisedKeys(seed=1, batch_size=4))
    assert first == batch_order(lengths, SupervisedKeys(seed=1, batch_size=4))
    assert first != batch_order(lengths, SupervisedKeys(seed=2, batch_size=4))


def test_a_missing_device_is_an_error(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="device: cuda"):
        prepare(SupervisedKeys(device="cuda"))


def test_a_line_of_the_loss_says_how_long_the_rest_takes(monkeypatch, caplog):
    """30 of 100 steps in 60 seconds after a start at step 0: 140 seconds for the rest."""
    now = [1000.0]
    monkeypatch.setattr("rlhf_dialog.terminal.time.monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, logger="rlhf_dialog")
    lines, state = _LossLines(), SimpleNamespace(global_step=0, max_steps=100)
    lines.on_step_begin(None, state, None)
    now[0] += 60
    state.global_step = 30
    lines.on_step_begin(None, state, None)  # only the first step is the start
    lines.on_log(None, state, None, logs={"loss": 1.5})
    lines.on_log(None, SimpleNamespace(global_step=100, max_steps=100), None, logs={"loss": 1.0})
    found = [one.getMessage() for one in caplog.records]
    assert found == ["step 30 of 100: loss 1.500, 2 min left", "step 100 of 100: loss 1.000"]
