"""Evaluation during training: prompts, the best iteration, and what is refused before training."""

import math
import time
from dataclasses import asdict, replace

import pytest
import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.generation import Responder
from rlhf_dialog.rewards import BaseReward
from rlhf_dialog.rewards.scoring import RewardTimeout
from rlhf_dialog.runs.services.validation import ValidationService, load_validation_prompts
from tests.parts.ranks import in_ranks
from tests.parts.trainers import PROMPTS, make_trainer, settings


def test_a_reward_without_an_end_stops_an_evaluation():
    class Stuck(BaseReward):
        name = "stuck"

        def __call__(self, dialogues):
            time.sleep(10)

    config = Config(model_path="m", env={"args": {"data_path": "d"}}, reward_class={"id": "x"}, reward_timeout_s=0.2)
    with pytest.raises(RewardTimeout, match=r"reward 'stuck' did not finish within 0\.2 seconds"):
        ValidationService(config, [Dialogue(["Hi ."], reference="Ho .")], Stuck()).check()


def test_evaluation_without_a_validation_split_is_refused(refused, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hello there .", "Hi .", "Bye ."]}\n', encoding="utf-8")
    message = refused("--env.args.data_path", "train.jsonl", "--reward_class", "{id: Vowels}", "--eval_interval", "1")
    assert "eval_interval: 1 needs a validation split; set eval_interval: 0, or fix this: " in message


def test_the_separator_of_the_run_is_replaced_in_the_validation_split(tmp_path):
    (tmp_path / "validation.jsonl").write_text('{"dialog": ["a | b", "c"]}\n', encoding="utf-8")
    keys = {"env": {"args": {"data_path": str(tmp_path)}}, "reward_class": {"id": "x"}, "turn_separator": "|"}
    (prompt,) = load_validation_prompts(Config(model_path="m", **keys))
    assert prompt.prompt_turns == ["a b"]


def test_an_unknown_eval_metric_and_a_wrong_judge_are_told_before_any_model_is_loaded(refused, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.runs.agent.load_models", lambda *_: pytest.fail("a model was loaded"))
    message = refused("--eval_interval", "1", "--eval_metric", "scroe")
    assert "eval_metric: 'scroe' is not measured; did you mean 'score'?" in message
    assert "length_match" in message
    judge = "{id: CopyPrice, args: {turns: 0}}"
    assert "guard.judge.args.turns: 0" in refused("--eval_interval", "1", "--guard.judge", judge)


def test_the_score_of_an_evaluation_is_less_the_truncation_penalty():

    class Seven(BaseReward):
        name = "seven"

        def __call__(self, dialogues):
            return [7.0] * len(dialogues)

    replies = Replies([Dialogue(["Hi ."]).with_reply("Ho .", truncated=i == 0) for i in range(4)], [2] * 4)
    keys = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "x"}}
    for penalty, score in ((0.0, 7.0), (2.0, 6.5)):
        validation = ValidationService(Config(**keys, truncation_penalty=penalty), [Dialogue(["Hi ."])] * 4, Seven())
        found = validation.measure([replies], 3)
        assert (found["score"], found["seven"]) == (score, 7.0)


def test_the_best_is_the_first_of_the_highest_and_is_kept_for_the_same_metric_and_prompts():
    first = ValidationService(settings(eval_interval=3), PROMPTS[:2], Drawn())
    for iteration, value in ((3, 1.0), (6, math.nan), (9, 1.0), (12, 0.5)):
        first.compare(value, iteration)
    assert asdict(first.best) == {"metric": "score", "num_prompts": 2, "value": 1.0, "iteration": 3}
    assert [first.due(*one) for one in ((3, False), (4, False), (4, True))] == [True, False, True]
    for keys, count, is_kept in (({}, 2, True), ({"eval_metric": "drawn"}, 2, False), ({}, 1, False)):
        other = ValidationService(settings(eval_interval=3, **keys), PROMPTS[:count], Drawn())
        other.load_state_dict(first.state_dict())
        assert (other.best is not None) == is_kept


class Drawn(BaseReward):
    """Draws a number for each reply; notes how often it is asked."""

    name = "drawn"

    def __init__(self):
        self.asked = []

    def __call__(self, dialogues):
        self.asked.append(len(dialogues))
        return [len(d.response) + torch.rand(()).item() for d in dialogues]


def validated(world, monkeypatch, prompts):
    """Metrics and best of a validation; the replies that this rank wrote, and the scores that it asked for."""
    reply, written, reward = Responder.reply, [], Drawn()
    monkeypatch.setattr(
        Responder, "reply", lambda self, some, *rest: written.append(len(some)) or reply(self, some, *rest)
    )
    trainer = make_trainer(world=world)
    validation = ValidationService(settings(eval_interval=1), prompts, reward)
    before = torch.get_rng_state()
    metrics = validation.validate(trainer)
    assert torch.equal(torch.get_rng_state(), before)
    metrics.pop("time/eval")
    monkeypatch.undo()
    return metrics, asdict(validation.best), sum(written), reward.asked


@pytest.mark.multiprocess
@pytest.mark.parametrize("count", [16, 2])
def test_ranks_share_the_prompts_out_and_measure_what_one_process_would(monkeypatch, count):
    """Bit for bit, with sampling and with a reward that draws; the batches of 6 are those of one process."""
    prompts = [replace(prompt, reference="a b c") for prompt in PROMPTS[:count]]
    metrics, best, written, asked = validated(World(), monkeypatch, prompts)
    assert (written, asked) == (count, [count])
    assert len({metrics["eval/drawn"], metrics["eval/mean_words"], metrics["eval/distinct_2"]}) == 3
    found = in_ranks(3, validated, monkeypatch, prompts)
    assert [one[:2] for one in found] == [(metrics, best)] * 3
    assert [one[2] for one in found] == {16: [5, 5, 6], 2: [0, 1, 1]}[count]
    assert [one[3] for one in found] == [[count], [], []]
