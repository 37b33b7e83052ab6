"""Dialogues of several turns in the trainer: what each token and each turn is paid, and that all of it is trained on."""

import math
from random import Random

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.models.generation import Responder
from rlhf_dialog.training.simulated import Simulated
from tests.parts.ranks import in_ranks
from tests.parts.text_environments import Letters
from tests.parts.trainers import make_trainer, numbers_of, parameters


def slow_gae(earned, values, gamma, gae_lambda):
    """The double sum of the paper, on lists of one number a turn."""
    deltas = [r + gamma * later - v for r, v, later in zip(earned, values, [*values[1:], 0.0], strict=True)]
    steps = range(len(deltas))
    return [sum((gamma * gae_lambda) ** (j - i) * deltas[j] for j in steps[i:]) for i in steps]


def dialogues(**keys):
    source = Simulated(lambda: Letters("so ?"), 3, EpisodeLimits())
    return make_trainer(prompts=source, gamma=1.0, use_adv_normalize=False, **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"max_prompt_length": 12},
        {"context_size": 1, "use_share_model": False, "top_k": 20, "per_device_microbatch_size": 1},
        {"context_size": 1, "kl_in": "loss", "credit": "turn"},
        {"max_prompt_length": 12, "advantage_estimator": "rloo", "num_responses_per_prompt": 2},
    ],
)
def test_dialogues_train_and_pass_the_checks_of_every_run(keys):
    """The KL of the start is 0, and the ratio of the first minibatch is 1 in each iteration: else the run stops."""
    trainer = dialogues(**keys)
    before = parameters(trainer.models.policy)
    metrics = trainer.step()
    rollout = trainer.rollout
    turns = [1 + seed % 3 for seed in seeds_of(trainer, len(rollout))]
    assert [len(d.turns) for d in rollout.dialogues] == [2 * count for count in turns]
    assert (rollout.segments is not None) == (max(turns) > 1 and bool({"max_prompt_length", "context_size"} & {*keys}))
    assert (metrics["environment/turns"], metrics["time_steps"]) == (sum(turns) / len(turns), rollout.num_tokens)
    replies = [[turn.text for turn in d.turns[::2]] for d in rollout.dialogues]
    paid = [sum(text.count("e") / max(len(text), 1) for text in some) for some in replies]
    assert metrics["environment/reward"] == pytest.approx(sum(paid) / len(paid))
    scores = [(i * 7) % 5 - 1.5 for i in range(len(paid))]
    assert metrics["objective/score"] == pytest.approx((sum(paid) + sum(scores)) / len(paid), abs=1e-6)
    assert metrics["environment/success"] == sum(any("e" in text for text in some) for some in replies) / len(replies)
    assert [d.meta["index"] for d in rollout.dialogues] == [
        i // trainer.config.num_responses_per_prompt for i in range(6)
    ]
    assert any(not torch.equal(p, before[name]) for name, p in parameters(trainer.models.policy).items())
    trainer.step()


def seeds_of(trainer, count):
    copies = trainer.config.num_responses_per_prompt
    source = Simulated(list, 3, EpisodeLimits())
    return source.deal([source[i // copies] for i in range(count)]).seeds


class Rambles:
    """A user who says 1 to 5 random turns, some of them empty, and pays a random number for each reply, into `known`."""

    def __init__(self, known):
        self.known = known

    def reset(self, seed=None):
        self.rng = Random(seed)
        self.left, self.paid = self.rng.randrange(1, 6), []
        self.known.append(self.paid)
        return self._turn(), {}

    def step(self, reply):
        self.left -= 1
        self.paid.append(self.rng.choice([0.0, self.rng.uniform(-2, 2)]))
        return self._turn(), self.paid[-1], self.left == 0, False, {}

    def _turn(self):
        return self.rng.choice(["", "o", "or two ?", "and this is a longer turn ."])


def columns_of(replies, mask, ids):
    """The columns of each reply, whose ids are these, in a row with a hole between two of them."""
    found, place = [], 0
    for reply in replies:
        begin = next(column for column in range(place, len(mask)) if mask[column])
        assert begin > place or not found
        found.append(range(begin, begin + len(reply)))
        place = begin + len(reply)
        assert ids[begin:place] == reply
    assert [column for column, counts in enumerate(mask) if counts] == [column for one in found for column in one]
    return found


K3 = {"context_size": 1, "kl_estimator": "k3"}


@pytest.mark.parametrize(
    ("credit", "options"),
    [
        *(("token", {}), ("turn", {"max_prompt_length": 24}), ("token", K3)),
        pytest.param("turn", {}, marks=pytest.mark.slow),
        pytest.param("token", {"max_prompt_length": 24}, marks=pytest.mark.slow),
        pytest.param("turn", K3, marks=pytest.mark.slow),
    ],
)
def test_random_dialogues_against_lists_of_what_was_sampled(monkeypatch, credit, options):
    """Holes, rewards and advantages of each dialogue from what user and policy said in it, without a tensor."""
    known, rounds, read = [], [], Responder.read
    monkeypatch.setattr(Responder, "read", lambda *parts: rounds.append(read(*parts)) or rounds[-1])
    keys = {"double": True, "ref_seed": 1, "ref_model": "another", "use_adv_normalize": False, "use_valuenorm": False}
    keys |= {"gamma": 0.9, "gae_lambda": 0.7, "kl_coef": 0.3, "rollout_batch_size": 24, "credit": credit}
    trainer = make_trainer(prompts=Simulated(lambda: Rambles(known), 5, EpisodeLimits()), **keys, **options)
    trainer.models.policy.value_head.weight.data.normal_()
    trainer.step()
    rollout, unequal = trainer.rollout, 0
    columns = [rollout.response_mask, rollout.tokens.response_ids, rollout.logprobs - rollout.ref_logprobs]
    columns += [rollout.values, rollout.advantages, rollout.returns]
    for row, paid in enumerate(known):
        mask, ids, ratios, values, *found = (x[row].tolist() for x in columns)
        turns = columns_of([one.pop(0).ids for one in rounds[: len(paid)]], mask, ids)
        price = [math.expm1(-x) + x if "kl_estimator" in options else x for x in ratios]
        earned = {column: -0.3 * price[column] for turn in turns for column in turn}
        for turn, reward in zip(turns, paid, strict=True):
            earned[turn[-1]] += reward
        earned[turns[-1][-1]] += (row * 7) % 5 - 1.5  # what `Places` pays
        steps = turns if credit == "turn" else [[column] for turn in turns for column in turn]
        before = [values[step[0]] for step in steps]
        expected = slow_gae([sum(earned[column] for column in step) for step in steps], before, 0.9, 0.7)
        advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
        for step, advantage, value in zip(steps, expected, before, strict=True):
            for column in step:
                advantages[column], returns[column] = advantage, advantage + value
        assert found == [pytest.approx(advantages, abs=1e-9), pytest.approx(returns, abs=1e-9)]
        unequal += len(paid) > 2
    assert unequal > 4


def test_dialogues_are_those_of_fewer_at_a_time():
    """Each has its own random streams, so neither the batch nor a resume changes what is said."""
    whole = dialogues()
    whole.step()
    small = dialogues(rollout_batch_size=2, lr=1e-12)
    small.models.policy.load_state_dict(dialogues().models.policy.state_dict())
    said = []
    for _ in range(3):
        small.step()
        said += [d.turns for d in small.rollout.dialogues]
    assert said == [d.turns for d in whole.rollout.dialogues]


def test_the_state_of_a_trainer_has_the_number_of_the_next_dialogue():
    first, second = dialogues(), dialogues()
    first.step()
    second.load_state_dict(first.state_dict())
    assert first.state_dict()["sampler"] == {"dialogues": 6}
    assert [meta["index"] for meta in second.next_episodes().metas] == [6, 7, 8, 9, 10, 11]


def told(world):
    trainer = dialogues(world=world, max_prompt_length=12)
    metrics = trainer.step()
    return [(d.meta["index"], d.turns) for d in trainer.rollout.dialogues], numbers_of(metrics)


@pytest.mark.multiprocess
def test_two_ranks_have_the_dialogues_of_one():
    (alone, metrics), ranks = told(World()), in_ranks(2, told)
    assert [one for rank, _ in ranks for one in rank] == alone
    for name in ("environment/reward", "environment/turns", "environment/success", "response/length", "time_steps"):
        assert [found[name] for _, found in ranks] == pytest.approx([metrics[name]] * 2), name


def numbers(source, asked):
    """Seeds of the users, and the first random number of each stream of the policy."""
    deal = source.deal([source[number] for number in asked])
    return deal.seeds, [torch.rand((), generator=stream).item() for stream in deal.streams]


def test_a_dialogue_depends_on_seed_split_and_number_alone():
    built = []
    source = Simulated(lambda: built.append(0), 7, EpisodeLimits())
    seeds, draws = numbers(source, range(6))
    assert len(set(seeds)) == len(set(draws)) == len(built) == 6
    for number in (3, 5):
        assert numbers(Simulated(list, 7, EpisodeLimits()), [number]) == ([seeds[number]], [draws[number]])
    for other in (Simulated(list, 8, EpisodeLimits()), Simulated(list, 7, EpisodeLimits(), "validation")):
        assert not {*numbers(other, range(6))[0]} & {*seeds}
    seeds, draws = numbers(source, [4, 4, 9])  # copies of a dialogue have the same user and another policy
    assert seeds[0] == seeds[1] != seeds[2]
    assert (len(set(draws)), len(built)) == (3, 6)
