"""Ranks agree: several processes on the parts of a rollout make the step that one process makes on all of it."""

import math
import os
from dataclasses import replace

import pytest
import torch

from rlhf_dialog.data.prompt_ids import PromptSampler
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.runs.services.ledger import rows_of
from rlhf_dialog.training.rollout import Rollout
from tests.parts.ranks import in_ranks
from tests.parts.steps import distance, one_step, sgd_learner
from tests.parts.trainers import PROMPTS, Holes, Places, change_predictions, collect_next, make_trainer, numbers_of


def part_of_step(world: World, rollout: Rollout, rows: list[list[int]], exact: bool, keys: dict) -> dict:
    if exact:
        torch.Tensor.float = torch.Tensor.double  # this process only: models and losses in float64
    return one_step(sgd_learner(rollout, rows, world, double=exact, **keys))


def check_ranks(monkeypatch, rows: list[list[int]], exact: bool, **keys) -> None:
    """One process on the stored rollout, then as many ranks as `rows` has lists, each on its rows."""
    if exact:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    keys = {"per_device_microbatch_size": 2, "rollout_batch_size": 7, **keys}
    first = sgd_learner(None, [], World(), double=exact, **keys)
    rollout = collect_next(first)
    expected = one_step(sgd_learner(rollout, [list(range(len(rollout)))], World(), double=exact, **keys))
    ranks = in_ranks(len(rows), part_of_step, rollout, rows, exact, keys)
    tolerance = 1e-11 if exact else 1e-5
    for found in ranks:
        assert distance(found["gradients"], expected["gradients"]) <= tolerance
        assert distance(found["moved"], expected["moved"]) <= (tolerance if exact else 1e-4)
        assert set(found["metrics"]) - set(expected["metrics"]) == {"time/wait"}
        for name, value in numbers_of(expected["metrics"]).items():
            if name not in ("time/wait", "FPS"):
                assert found["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_two_ranks_make_the_step_of_one(monkeypatch):
    """The quick test that always runs: float32, shared trunk, microbatches that do not divide either part."""
    check_ranks(monkeypatch, [[0, 1, 2], [3, 4, 5, 6]], exact=False)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("rows", "keys", "exact"),
    [
        ([[0, 1, 2, 3, 4, 5, 6], []], {"use_share_model": False}, True),
        ([[0, 1, 2], [3, 4], [5, 6]], {"per_device_microbatch_size": 1, "top_k": 20, "use_valuenorm": False}, True),
        (
            [[0, 1, 2, 3], [4, 5]],
            {
                **{"advantage_estimator": "grpo", "num_responses_per_prompt": 2, "rollout_batch_size": 6},
                **{"loss_average": "response", "ratio": "sequence", "kl_in": "loss", "per_device_microbatch_size": 1},
            },
            True,
        ),
        (
            [[], [0, 1, 2, 3]],
            {"advantage_estimator": "grpo", "num_responses_per_prompt": 2, "rollout_batch_size": 4},
            True,
        ),
    ],
)
def test_ranks_make_the_step_of_one_process(monkeypatch, rows, keys, exact):
    check_ranks(monkeypatch, rows, exact, **keys)


# -- a whole iteration of its own on each rank


class Counted(VecInfo):
    def __call__(self, rollout):
        return {"mine/first": float(rollout.dialogues[0].meta["index"]), "mine/one": 1.0}


def iterate(world: World, keys: dict, count: int = 2, reward=None) -> dict:
    trainer = make_trainer(reward, world=world, **{"vec_info": Counted(), **keys})
    torch.manual_seed(world.rank)
    seen, responses, lines, steps = [], [], [], []
    for _ in range(count):
        lines.append(trainer.step())
        rollout = trainer.rollout
        seen.append([dialogue.meta["index"] for dialogue in rollout.dialogues])
        pairs = zip(rollout.tokens.response_ids, rollout.response_mask, strict=True)
        responses += [ids[mask].tolist() for ids, mask in pairs]
        steps.append({int(s["step"]) for o in trainer.optimizers.values() for s in o.state.values()})
    return {
        "seen": seen,
        "responses": responses,
        "lines": lines,
        "steps": steps,
        "tokens": [rollout.num_tokens, len(rollout)],
        "weights": [p.detach().clone() for p in trainer.models.policy.parameters()],
        "state": trainer.state_dict(),
    }


def together(ranks: list[dict], name: str) -> list[float]:
    said = [[line[name] for line in found["lines"]] for found in ranks]
    assert all(one == said[0] for one in said)
    return said[0]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("size", "count", "share"), [(2, 7, True), (3, 4, False)])
def test_ranks_share_out_the_order_of_one_process(size, count, share):
    keys = {"rollout_batch_size": count, "use_share_model": share, "num_mini_batch": 3, "lr": 1e-2}
    ranks = in_ranks(size, iterate, keys)
    order = make_trainer().sampler.take(2 * count)
    for iteration in (0, 1):
        found = [index for rank in ranks for index in rank["seen"][iteration]]
        assert found == order[iteration * count : (iteration + 1) * count]
    drawn = [tuple(response) for rank in ranks for response in rank["responses"] if len(response) > 2]
    assert len(set(drawn)) == len(drawn)
    for rank in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(rank["weights"], ranks[0]["weights"], strict=True))
        assert rank["state"] == ranks[0]["state"]
    assert together(ranks, "episodes") == [count, 2 * count]
    tokens = [sum(map(len, rank["responses"])) for rank in ranks]
    assert together(ranks, "time_steps")[1] == sum(tokens)
    newest, episodes = (sum(rank["tokens"][i] for rank in ranks) for i in (0, 1))
    assert together(ranks, "response/length")[1] == pytest.approx(newest / episodes)
    assert together(ranks, "ppo/skipped_steps") == [0, 0]
    assert all(rank["steps"] == [{6}, {12}] for rank in ranks)  # 3 minibatches, 2 epochs
    firsts, sizes = ([f(rank["seen"][1]) for rank in ranks] for f in (lambda seen: seen[0], len))
    expected = sum(a * n for a, n in zip(firsts, sizes, strict=True)) / sum(sizes)
    assert together(ranks, "mine/first")[1] == pytest.approx(expected)
    assert together(ranks, "mine/one") == [1.0, 1.0]


class HolesOn(Holes):
    def __init__(self, rank, places):
        super().__init__(places)
        self.rank = rank

    def __call__(self, dialogues):
        return super().__call__(dialogues) if int(os.environ["RANK"]) == self.rank else Places()(dialogues)


@pytest.mark.multiprocess
def test_a_rank_whose_episodes_are_dropped_takes_the_same_steps():
    places = [0, 1, 2, 3]
    keys = {"rollout_batch_size": 8, "num_mini_batch": 8, "on_reward_error": "skip", "lr": 1e-2, "vec_info": VecInfo()}
    ranks = in_ranks(2, iterate, keys, 2, HolesOn(1, places))
    assert together(ranks, "response/unscored") == [len(places)] * 2
    assert ranks[0]["steps"] == ranks[1]["steps"] == [{2 * (8 - len(places))}, {4 * (8 - len(places))}]
    assert all(torch.equal(a, b) for a, b in zip(ranks[0]["weights"], ranks[1]["weights"], strict=True))
    assert together(ranks, "episodes") == [8, 16]


def stopped(world: World, spoil, keys: dict, reward=None) -> str:
    trainer = make_trainer(reward, world=world, **keys)
    if world.rank == 1:
        spoil(trainer)
    try:
        for _ in range(2):
            trainer.step()
    except (RunStopped, UserError) as error:
        world.sum_numbers([0.0])  # waits for all ranks
        return f"{type(error).__name__} {error}"
    return f"went on, {trainer.update.skipped_in_a_row} skipped"


def wrong_ratio(trainer):
    change_predictions(None, lambda predictions, _: predictions._replace(logprobs=predictions.logprobs + 0.01))


def bad_microbatch(trainer):
    change_predictions(None, lambda predictions, _: predictions._replace(entropy=predictions.entropy * math.nan))


def reward_raises(trainer):
    class Broken(Places):
        def __call__(self, dialogues):
            raise ZeroDivisionError("in the reward")

    trainer.scorer = replace(trainer.scorer, reward=Broken())


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (wrong_ratio, "RunStopped rank 1: iteration 1: the ratio of new to old"),
        (reward_raises, "rank 1: reward 'places' raised ZeroDivisionError: in the reward"),
    ],
)
def test_what_fails_on_one_rank_ends_all_and_names_it(spoil, words):
    first, second = in_ranks(2, stopped, spoil, {})
    assert words in first
    assert words in second


@pytest.mark.multiprocess
def test_a_number_that_is_not_finite_on_one_rank_skips_the_step_on_all():
    first, second = in_ranks(2, stopped, bad_microbatch, {"max_skipped_steps": 3, "ppo_epoch": 1})
    assert first == second
    assert "a number of the update is not finite (ppo/loss nan" in first or "ppo/loss nan" in first
    assert "3 in a row" in first
    guilty = first.split("prompts of the microbatch with it: ")[1].split(";")[0]
    order = make_trainer().sampler.take(12)
    assert {int(word) for word in guilty.replace("prompt ", "").split(", ")} <= {*order[3:6], *order[9:12]}


# -- other prompts in place of those that give no signal


class FlatForSome(BaseReward):
    """The same for both responses to a prompt whose number is even, which differs from prompt to prompt."""

    def __init__(self):
        self.begun = 0

    def begin_scoring(self, purpose, iteration):
        self.begun += 1

    def __call__(self, dialogues):
        return [d.meta["index"] + (d.meta["index"] % 2) * 0.5 * (i % 2) for i, d in enumerate(dialogues)]


def resampled(world=None, iterations=1, **keys):
    groups = {"advantage_estimator": "grpo", "num_responses_per_prompt": 2, "rollout_batch_size": 8}
    reward = FlatForSome()
    trainer = make_trainer(reward, world=world, **{**groups, "resample_flat_groups": 9, **keys})
    metrics = [trainer.step() for _ in range(iterations)][-1]
    return trainer, metrics, reward


def indices(rollout):
    return [dialogue.meta["index"] for dialogue in rollout.dialogues[::2]]


@pytest.mark.parametrize("limit", [9, 1])
def test_flat_groups_make_room_for_the_next_prompts(limit):
    trainer, metrics, reward = resampled(
        resample_flat_groups=limit, kl_in="loss", top_k=20, ref_seed=3, ref_model="another"
    )
    order = PromptSampler(len(PROMPTS), 0).take(len(PROMPTS))
    rounds, kept = [order[:4]], []
    while len(rounds) <= limit and (missing := sum(number % 2 == 0 for number in rounds[-1])):
        kept += [number for number in rounds[-1] if number % 2]
        taken = sum(map(len, rounds))
        rounds.append(order[taken : taken + missing])
    kept += rounds[-1]
    drawn, used, left = [x for some in rounds for x in some], trainer.rollout, sum(x % 2 == 0 for x in rounds[-1])
    assert len(rounds) > 2 or left
    assert (indices(used.drawn), indices(used)) == (drawn, kept)
    assert (metrics["rollout/resampled"], metrics["rollout/flat_left"]) == (len(drawn) - 4, left)
    assert (reward.begun, metrics["episodes"], metrics["ppo/flat_groups"]) == (len(rounds), 2 * len(drawn), left)
    assert metrics["time_steps"] == used.drawn.num_tokens
    assert metrics["objective/score"] == pytest.approx(used.drawn.scores.mean().item())
    log_ratios = (used.drawn.logprobs - used.drawn.ref_logprobs)[used.drawn.response_mask]
    assert metrics["objective/kl"] == pytest.approx(log_ratios.mean().item(), rel=1e-4)
    assert metrics["response/length"] == pytest.approx(used.drawn.num_tokens / (2 * len(drawn)))
    assert trainer.sampler.state_dict() == {"epoch": 0, "index": len(drawn)}
    for name in ("logprobs", "ref_logprobs", "truncated", "scores"):  # each row has kept what is its own
        column = {(x, i): y for x, i, y in rows_by_prompt(used.drawn, getattr(used.drawn, name))}
        assert all(torch.equal(column[x, i], y) for x, i, y in rows_by_prompt(used, getattr(used, name)))
    assert metrics["ppo/policy_loss"] != 0
    assert len({*used.tokens.prompt_groups.tolist()}) == 4
    found = rows_of(used, 1, trainer.config)
    assert sum(row["used"] for row in found) == 8
    assert len(found) == 2 * len(drawn)


def rows_by_prompt(rollout, column):
    return [(d.meta["index"], i % 2, column[i]) for i, d in enumerate(rollout.dialogues)]


def test_without_flat_groups_nothing_changes():
    keys = {"advantage_estimator": "grpo", "num_responses_per_prompt": 2, "rollout_batch_size": 8}
    trainers, found = [], []
    for count in (0, 3):
        trainers.append(make_trainer(Places(), **keys, resample_flat_groups=count))
        found.append(trainers[-1].step())
    plain, other = found
    assert {name: other[name] for name in numbers_of(plain)} == numbers_of(plain)
    assert all(map(torch.equal, *(trainer.models.policy.parameters() for trainer in trainers)))
    assert (other["rollout/resampled"], other["rollout/flat_left"]) == (0, 0)


def resample_on_ranks(world):
    trainer, metrics, reward = resampled(world, iterations=2)
    used = trainer.rollout
    return indices(used if used.drawn is None else used.drawn), indices(used), numbers_of(metrics), reward.begun


@pytest.mark.slow
def test_two_ranks_draw_the_same_prompts_and_divide_them():
    """The prompts are those of one process; a rank may get none in a round, and rounds are begun on both."""
    trainer, alone, reward = resampled(iterations=2)
    found = in_ranks(2, resample_on_ranks)
    for part, rollout in ((0, trainer.rollout.drawn), (1, trainer.rollout)):
        assert sorted(found[0][part] + found[1][part]) == sorted(indices(rollout))
    for _, _, metrics, begun in found:
        assert begun == reward.begun
        for name in ("rollout/resampled", "rollout/flat_left", "episodes", "iteration"):
            assert metrics[name] == alone[name]
    names = [name for name in found[0][2] if not name.startswith(("time/", "reward/"))]
    assert {name: found[0][2][name] for name in names} == {name: found[1][2][name] for name in names}
