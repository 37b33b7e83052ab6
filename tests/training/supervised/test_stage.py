"""The order in which the frame calls a stage, and the line that it prints itself."""

import torch

from rlhf_dialog.training.supervised.settings import SupervisedKeys
from rlhf_dialog.training.supervised.stage import SupervisedStage


class Recorded(SupervisedStage[SupervisedKeys]):
    schema = SupervisedKeys

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


def test_the_weights_follow_from_the_seed_alone(tmp_path):
    def weights(seed: int) -> torch.Tensor:
        stage = Recorded(SupervisedKeys(device="cpu", seed=seed), tmp_path, lambda line: None)
        stage.train()
        return stage.model.weight

    first = weights(3)
    torch.rand(7)
    assert torch.equal(weights(3), first)
    assert not torch.equal(weights(4), first)
