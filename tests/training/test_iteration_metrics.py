"""The line of an iteration: its numbers by hand, its keys, and a vec-info that raises."""

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.metrics import NLPVecInfo, VecInfo
from rlhf_dialog.training import rollout as clock
from rlhf_dialog.training.iteration_metrics import dialogue_metrics, vec_info_metrics
from tests.parts.pretended_gpu import pretended_gpu
from tests.parts.ranks import in_ranks
from tests.parts.trainers import Places, make_trainer


def test_statistics_of_a_single_step_by_hand():
    keys = {"num_mini_batch": 1, "ppo_epoch": 1, "use_adv_normalize": False, "use_valuenorm": False}
    trainer = make_trainer(**keys, use_huber_loss=True, huber_delta=0.5)
    metrics, rollout = trainer.step(), trainer.rollout
    mask = rollout.response_mask
    assert 0 < mask.sum() < mask.numel()
    sizes = rollout.returns[mask].abs()  # the values are 0
    clipped = torch.where(sizes <= 0.5, sizes**2 / 2, 0.5 * (sizes - 0.25))
    assert metrics["ppo/value_loss"] == pytest.approx(clipped.mean().item(), abs=1e-5)
    assert metrics["ppo/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert metrics["objective/score"] == pytest.approx(sum(Places()(rollout.dialogues)) / 6)
    assert metrics["objective/entropy"] == pytest.approx(rollout.entropy[mask].mean().item(), abs=1e-6)
    assert metrics["response/length"] == mask.sum().item() / 6
    assert metrics["response/truncated"] == pytest.approx(rollout.truncated.float().mean().item())
    assert metrics["reward/places"] == metrics["reward/places_weighted"] == pytest.approx(metrics["objective/score"])


def test_keys_of_a_metrics_line():
    class Mine(VecInfo):
        def __call__(self, rollout):
            return {"mine/size": float(len(rollout)), "mine/paid": rollout.rewards.sum().item()}

    metrics = make_trainer(vec_info=Mine()).step()
    wanted = """iteration time_steps episodes FPS objective/score objective/kl objective/kl_coef objective/entropy
        reward/places reward/places_weighted ppo/policy_loss ppo/value_loss ppo/clip_fraction ppo/approx_kl
        ppo/explained_variance ppo/grad_norm response/length response/truncated time/rollout time/reward time/update"""
    assert set(wanted.split()) <= set(metrics)
    assert metrics["mine/size"] == 6
    assert metrics["mine/paid"] != 0
    assert all(isinstance(value, (int, float)) for value in metrics.values())
    seconds = metrics["time/rollout"] + metrics["time/reward"] + metrics["time/update"]
    assert metrics["FPS"] == pytest.approx(metrics["time_steps"] / seconds, rel=0.2)


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ([{"success": True}, {"success": False}, {}, {"success": True}], {"success": 2 / 3, "success_of": 3}),
        ([{"success": True}, {"success": False}], {"success": 0.5}),
        ([{}, {}], {}),
    ],
)
def test_success_while_training_is_that_of_the_dialogues_that_say_it(infos, expected):
    class Played(list):
        dialogues = [Dialogue(["Hi ."], "Ho .", meta={"info": info}) for info in infos]  # noqa: RUF012
        num_replies, turn_rewards = len(infos), None

    found = dialogue_metrics(Played(Played.dialogues), World())
    assert {name: found[f"environment/{name}"] for name in expected} == pytest.approx(expected)
    assert len(found) == 2 + len(expected)


@pytest.mark.parametrize(
    ("error", "seen", "words"),
    [
        (ZeroDivisionError("no"), UserError, r"Stops raised ZeroDivisionError: no at .*test_iteration_metrics\.py:\d+"),
        (SystemExit(0), UserError, "Stops raised SystemExit: 0 at"),
        (SignalExit(143), SignalExit, None),
    ],
)
def test_a_vec_info_that_raises_is_the_users_error_and_signals_pass(error, seen, words):
    class Stops(VecInfo):
        def __call__(self, rollout):
            raise error

    with pytest.raises(seen, match=words):
        make_trainer(vec_info=Stops()).step()


class Words(VecInfo):
    """A mean, and what is none: the number of different responses. It also offers a number that nobody asked for."""

    def __call__(self, rollout):
        responses = [dialogue.response for dialogue in rollout.dialogues]
        return {"mine/words": float(len(responses)), "mine/different": len(set(responses))}

    def pool(self, responses):
        return {"mine/different": len(set(responses)), "mine/unknown": 1.0}


class Said:
    """What a vec-info sees of a rollout."""

    def __init__(self, dialogues):
        self.dialogues, self.rewards = dialogues, torch.zeros(len(dialogues), 1)

    def __len__(self):
        return len(self.dialogues)


def of_ranks(world, made):
    """Rank 0 has the first of four responses, rank 1 two more, rank 2 the last."""
    texts = ["a b c", "a b", "d e f", "a b c"]
    texts = [texts[:1], texts[1:3], texts[3:]][world.rank] if world.size > 1 else texts
    return vec_info_metrics(made, Said([Dialogue([], text) for text in texts]), world)


@pytest.mark.multiprocess
def test_distinct_n_of_several_ranks_is_that_of_all_replies():
    """ab bc | ab, de ef | ab bc: 4 pairs of 7. The mean of the ranks' own would be 1."""
    alone = of_ranks(World(), NLPVecInfo())
    assert alone["response/distinct_2"] == 4 / 7
    assert in_ranks(3, of_ranks, NLPVecInfo()) == [pytest.approx(alone)] * 3
    found = in_ranks(3, of_ranks, Words())
    assert found == [{"mine/words": (1 + 2 * 2 + 1) / 4, "mine/different": 3}] * 3
    assert of_ranks(World(), Words()) == {"mine/words": 4.0, "mine/different": 3}


def test_seconds_of_one_name_add_up(monkeypatch):
    ticks = iter([5.0, 10.0, 12.0, 20.0, 20.5, 30.0, 34.0, 36.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ticks))
    watch = clock.Clock(torch.device("cpu"))
    for name in ("rollout", "reward", "rollout"):
        with watch.measure(name):
            pass
    assert watch.seconds == {"rollout": pytest.approx(2.0 + 4.0), "reward": pytest.approx(0.5)}
    assert watch.elapsed == 31.0


def test_a_gpu_is_waited_for_once_when_the_seconds_are_read(monkeypatch):
    ticks = iter([10.0, 12.0, 20.0, 20.5])
    with pretended_gpu() as gpu:
        monkeypatch.setattr(torch.cuda.Event, "record", lambda self: setattr(self, "seconds", next(ticks)))
        watch = clock.Clock(torch.device("cuda", 0))
        for _ in range(2):
            with watch.measure("update"):
                pass
        assert gpu.num_waits == 0
        assert watch.seconds == {"update": pytest.approx(2.0 + 0.5)}
        assert watch.seconds == {"update": pytest.approx(2.0 + 0.5)}  # nothing counts twice
        assert gpu.num_waits == 1
