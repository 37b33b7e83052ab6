"""A supervised stage: keys, data, the trainer of the library, the classifier."""

import itertools
import json
import logging
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised import intent_classifier as intent
from rlhf_dialog.training.supervised.settings import IntentConfig, SupervisedKeys
from rlhf_dialog.training.supervised.stage import (
    Encoded,
    LossLines,
    StageOfHalves,
    SupervisedStage,
    batch_order,
    for_one_gpu,
    num_steps,
)
from tests.parts import tiny


class Recorded(SupervisedStage[SupervisedKeys]):
    def read(self):
        self.calls = ["read"]
        return [1, 2], "held out"

    def start(self):
        self.calls.append(f"start with {self.training}")
        return torch.nn.Linear(1000, 24, bias=False), "words"

    def learn(self):
        self.calls.append(f"learn {self.model.out_features}")

    def save(self):
        self.calls.append(f"save into {self.folder}")

    def measure(self):
        self.calls.append(f"measure {self.held_out}")
        return {"parameters": self.num_parameters}


def test_a_stage_is_read_started_trained_saved_and_measured(tmp_path):
    lines = []
    stage = Recorded(SupervisedKeys(device="cpu"), tmp_path, lines.append)
    assert stage.train() == {"parameters": 24000}
    assert stage.calls == ["read", "start with [1, 2]", "learn 24", f"save into {tmp_path}", "measure held out"]
    assert lines == ["0.02 million parameters, 5 tokens in the vocabulary"]
    weights = []
    for seed in (3, 3, 4):
        again = Recorded(SupervisedKeys(device="cpu", seed=seed), tmp_path, lines.append)
        again.train()
        weights.append(again.model.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


class OfHalves(StageOfHalves):
    def pairs(self, split):
        return PromptRules(drop_overlap=self.config.drop_overlap).load(self.config.data_path, split)

    start = learn = measure_split = None


def half_of(data, half, said=print, **keys):
    """The pairs to learn from, and what the report says of the half."""
    stage = OfHalves(IntentConfig(data_path=data, output="unused", half=half, **keys), None, said)
    return stage.read()[0], stage.learned_half


def test_the_halves_share_no_dialogue_and_leave_none_out(tmp_path):
    """tiny data: no dialogue repeats another one, so that each is in one of the halves."""
    data, said = str(tiny.write_data(tmp_path, 25)), []
    for drop in (False, True):
        pairs = PromptRules(drop_overlap=drop).load(data, "train")
        assert half_of(data, "all", said.append, drop_overlap=drop) == (pairs, None)
        assert said == []
        (reward, first), (judge, second) = (
            half_of(data, half, said.append, drop_overlap=drop) for half in ("reward", "judge")
        )
        numbers, others = ({pair.meta["dialogue"] for pair in half} for half in (reward, judge))
        assert not numbers & others
        assert numbers | others == {pair.meta["dialogue"] for pair in pairs}
        assert len(numbers) > 5 < len(others)
        assert (first.part, second.part, first.assignment) == ("reward", "judge", second.assignment)
        assert said.pop() == f"train: {len(judge)} of them are in the judge's half of the dialogues"
        said.clear()


def test_an_empty_half_is_the_users_error(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hi .", "Hello ."], "act": [1, 1]}\n', encoding="utf-8")
    with pytest.raises(UserError, match="half: no pair of turns"):
        half_of(str(tmp_path), "judge")


def test_scores_by_hand():
    matrix = [[6, 2, 0, 0], [1, 3, 0, 0], [3, 0, 1, 0], [0, 0, 0, 0]]
    result = intent.scores(matrix)
    assert result["num_pairs"] == 16
    assert result["accuracy"] == pytest.approx(10 / 16)
    assert result["majority"] == {"class": "inform", "accuracy": 8 / 16}
    inform, question, directive, commissive = result["per_class"].values()
    assert inform == {"precision": 0.6, "recall": 0.75, "f1": pytest.approx(2 / 3), "support": 8}
    assert question == {"precision": 0.6, "recall": 0.75, "f1": pytest.approx(2 / 3), "support": 4}
    assert directive == {"precision": 1.0, "recall": 0.25, "f1": pytest.approx(0.4), "support": 4}
    assert commissive == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert result["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0.4) / 3)  # nothing is commissive or taken for it
    assert result["confusion_matrix"] == matrix


@pytest.mark.parametrize(
    ("target", "prompts"), [("act", [["a b ."], ["c ?"]]), ("next_act", [["a b ."], ["a b .", "c ?"]])]
)
def test_a_classifier_of_acts_reads_pairs_and_counts_its_hits(tmp_path, monkeypatch, target, prompts):
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text('{"dialog": ["a b .", "c ?", "d ."], "act": [1, 2, 4]}\n')
    sizes = {"vocab_size": 200, "hidden_size": 8, "num_layers": 1}
    config = IntentConfig(data_path=str(tmp_path), output="x", target=target, **sizes)
    stage = intent.IntentClassifier(config, tmp_path / "out", lambda line: None)
    stage.training, stage.held_out = stage.read()
    assert [(pair.prompt_turns, pair.reference) for pair in stage.training] == [
        (prompts[0], "c ?"),
        (prompts[1], "d ."),
    ]
    stage.model, stage.tokenizer = stage.start()
    stage.save()
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["rlhf_dialog_input"], written.get("rlhf_dialog_target", "act")) == ("pair", target)
    monkeypatch.setattr(stage.reads, "predict", lambda self, pairs: [1] * len(pairs))
    found = stage.measure_split(stage.held_out["validation"])
    assert found["confusion_matrix"] == [[0] * 4, [0, 1, 0, 0], [0] * 4, [0, 1, 0, 0]]
    assert "## test: 2 of 2 true replies" in intent.markdown("test", found)
    (tmp_path / "train.jsonl").write_text('{"dialog": ["a", "b"]}\n')
    with pytest.raises(UserError, match=r"1 of 1 turns in the train split .* have no act"):
        stage.read()


def test_every_epoch_holds_every_example_once():
    lengths = [random.Random(0).randint(5, 90) for _ in range(64)]
    order = batch_order(lengths, SupervisedKeys(epochs=2, batch_size=8, seed=1))
    assert order == batch_order(lengths, SupervisedKeys(epochs=2, batch_size=8, seed=1))
    assert order != batch_order(lengths, SupervisedKeys(epochs=2, batch_size=8, seed=2))
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


def test_the_fingerprint_of_examples_is_of_their_ids_labels_and_order():
    """A training of other examples does not go on from the checkpoint of these."""

    def fingerprint(*rows):
        return Encoded(rows, lambda row: {"input_ids": row[0], "labels": row[1], "length": len(row[0])}).fingerprint

    first, second = ([5, 6], [-100, 6]), ([7, 8], [-100, 8])
    others = [(second, first), (first, ([7, 9], [-100, 8])), (first, ([7, 8], [7, 8])), (first,)]
    assert fingerprint(first, second) == fingerprint(first, second)
    assert len({fingerprint(first, second), *(fingerprint(*rows) for rows in others)}) == 5


def test_the_number_of_steps():
    assert num_steps(SupervisedKeys(epochs=3, batch_size=32), 320) == 30
    assert num_steps(SupervisedKeys(epochs=0.5, batch_size=32), 320) == 5
    assert num_steps(SupervisedKeys(epochs=1, batch_size=32), 3) == 1
    assert num_steps(SupervisedKeys(epochs=3, max_steps=7), 320) == 7
    for count in (3, 33, 320):
        config = SupervisedKeys(epochs=1.5, batch_size=32)
        assert len(batch_order([1] * count, config)) == 32 * num_steps(config, count)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(())), []

    def forward(self, x):
        self.seen += x.tolist()
        return {"loss": (self.weight * x).mean()}


@pytest.mark.slow
def test_the_librarys_trainer_has_the_keys_and_the_order_of_the_stage(tmp_path):
    """Eight steps, of which the first two warm up; then half a cosine."""
    keys = {"batch_size": 2, "epochs": 1, "learning_rate": 0.1, "warmup_ratio": 0.25, "weight_decay": 0.3, "seed": 5}
    config = IntentConfig(data_path="d", output=str(tmp_path / "o"), device="cpu", **keys)
    stage = Recorded(config, tmp_path, print)
    stage.model, stage.tokenizer = Line(), None
    rows = [{"length": 1 + number, "x": float(number)} for number in range(16)]
    made = stage.run_trainer(Encoded(rows, dict), Trainer, TrainingArguments)
    assert stage.model.seen == batch_order([row["length"] for row in rows], config)
    rates = [line["learning_rate"] for line in made.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([0, 0.05, *(0.05 * (1 + math.cos(math.pi * k / 6)) for k in range(6))])
    assert (made.args.weight_decay, made.args.seed, stage.model.training) == (0.3, 5, False)


def test_a_line_of_the_loss_says_how_long_the_rest_takes(monkeypatch, caplog):
    """30 of 100 steps in 60 seconds after a start at step 0: 140 seconds for the rest."""
    now = [1000.0]
    monkeypatch.setattr("rlhf_dialog.terminal.time.monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, logger="rlhf_dialog")
    lines, state = LossLines(None, None), SimpleNamespace(global_step=0, max_steps=100)
    lines.on_step_begin(None, state, None)
    now[0] += 60
    state.global_step = 30
    lines.on_step_begin(None, state, None)  # only the first step is the start
    lines.on_log(None, state, None, logs={"loss": 1.5})
    lines.on_log(None, SimpleNamespace(global_step=100, max_steps=100), None, logs={"loss": 1.0})
    found = [one.getMessage() for one in caplog.records]
    assert found == ["step 30 of 100: loss 1.500, 2 min left", "step 100 of 100: loss 1.000"]


def test_a_process_that_sees_two_gpus_has_the_batches_of_one(monkeypatch, tmp_path):
    """What transformers says of two GPUs; on a CPU, `nn.DataParallel` only calls its module."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    keys = {"output_dir": str(tmp_path), "per_device_train_batch_size": 4, "use_cpu": True}
    assert TrainingArguments(**keys).train_batch_size == 2 * 4
    arguments = for_one_gpu(TrainingArguments)(**keys)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, 4)
    trainer = Trainer(model=nn.Linear(1, 1), args=arguments)
    assert not isinstance(trainer._wrap_model(trainer.model), nn.DataParallel)
