"""`reference: false`: no second model, the same training, and null where the reference would be needed."""

import json
from pathlib import Path

import pytest
import torch

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.runs import identity
from tests.parts.ppo_runs import rows, same, weights, without_clocks
from tests.parts.saving import steps
from tests.parts.trainers import make_trainer, parameters, settings


def test_the_training_is_the_same_without_the_reference():
    trained = []
    for reference in (True, False):
        trainer = make_trainer(kl_coef=0.0, use_share_model=False, reference=reference)
        steps(trainer, 2)
        trained.append(parameters(trainer.models.policy))
    assert same(*trained)


def test_the_rounding_is_measured_on_the_policy():
    trainer = make_trainer(kl_coef=0.0, reference=False)
    trainer.models.policy.train()
    with pytest.raises(RunStopped, match="the policy draws random numbers"):
        trainer.step()


@pytest.mark.parametrize("use_lora", [False, True])
def test_no_reference_is_loaded(world, use_lora):
    keys = {"model_path": str(world / "model"), "use_lora": use_lora, "use_share_model": False, "kl_coef": 0.0}
    assert load_models(settings(**keys), torch.device("cpu")).ref_policy is not None
    assert load_models(settings(**keys, reference=False), torch.device("cpu")).ref_policy is None


def test_a_checkpoint_of_a_run_with_the_reference_is_refused():
    made = (make_trainer(kl_coef=0.0, reference=reference) for reference in (True, False))
    then, now = (identity.identity_of(x.config, x.models, x.prompts, x.scorer.reward) for x in made)
    with pytest.raises(UserError, match="reference: false here, true in the checkpoint"):
        identity.refuse_another_run(now, then, Path("runs/ppo/checkpoints/iter_000002"))


@pytest.mark.slow
def test_a_run_is_resumed_exactly_and_its_lines_have_nulls(run, tmp_path, capsys):
    words = ("--kl_coef", "0", "--use_lora", "true", "--max_iterations", "3")
    without = (*words, "--reference", "false")
    assert run(*words, "--experiment_name", "with") == 0
    assert run(*without, "--experiment_name", "whole") == 0
    assert "KL" not in capsys.readouterr().out.split("run_results/whole")[0].splitlines()[-1]
    assert run(*without, "--max_iterations", "1", "--experiment_name", "resumed") == 0
    assert run(*without, "--experiment_name", "resumed", "--resume") == 0
    with_it, whole, resumed = (tmp_path / "run_results" / name for name in ("with", "whole", "resumed"))
    assert same(weights(whole / "agent"), weights(with_it / "agent"))
    assert same(weights(resumed / "agent"), weights(whole / "agent"))
    assert without_clocks(resumed) == without_clocks(whole)
    assert [(row["objective/kl"], row["objective/gain"]) for row in rows(whole)] == [(None, None)] * 3
    lines = [json.loads(line) for line in (whole / "ledger.jsonl").read_text().splitlines()]
    assert {line["kl"] for line in lines} == {None}
    assert (whole / "report.html").exists()
