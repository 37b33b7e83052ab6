"""Replay: pieces become dialogues, nothing leaks over an end, and each learner goes on exactly from what it saved."""

from random import Random

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.replay import Replay
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from tests.parts.folders import contents
from tests.parts.toy_environments import Colours, Counted

LEARNERS = ("dqn", "bbqn", "acer", "a2c", "tracer", "enac")
RANDOM = RandomPolicy(PolicySpec(2, 3))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def counted(capacity, *batches, num_envs=3):
    """A replay that saw dialogues of `Counted`, whose observations are [dialogue, turn], in batches of turns."""
    replay, sampler, num_ended = Replay(capacity), Sampler(Counted, 0, num_envs), 0
    for num_turns in batches:
        for one in sampler.sample(RANDOM, num_turns):
            assert replay.add(one) == one.ended
            num_ended += one.ended
    return replay, num_ended


def dialogues(replay):
    """All whole dialogues as arrays, the oldest first."""
    columns = replay.newest(len(replay.stack.lengths))
    parts = {name: column.split(replay.stack.lengths.tolist()) for name, column in columns.items()}
    return [dict(zip(parts, own, strict=True)) for own in zip(*parts.values(), strict=True)]


def test_pieces_of_dialogues_become_whole_ones_in_the_order_of_their_ends():
    replay, num_ended = counted(10**6, *[4] * 20)
    assert len(dialogues(replay)) == num_ended > 10
    for own in dialogues(replay):
        number = int(own["observations"][0, 0])
        turns = np.arange(number % 5 + 1)
        np.testing.assert_array_equal(own["observations"], [[number, turn] for turn in turns])
        np.testing.assert_array_equal(own["turn"], turns)
        np.testing.assert_allclose(own["rewards"], number + turns / 10)
    columns = replay.newest(num_ended)
    last = columns["observations"][:, 1] == columns["observations"][:, 0] % 5
    assert torch.equal(columns["ended"], last)


def test_what_follows_a_turn_is_of_the_same_dialogue():
    replay, _ = counted(10**6, 100)
    turns = replay.turns(2000, seeded())
    goes_on = ~turns["ended"]
    following = turns["observations"][goes_on] + torch.tensor([0.0, 1.0])
    assert torch.equal(turns["next_observations"][goes_on], following)
    assert turns["next_masks"].shape == turns["masks"].shape == (2000, 3)
    assert len(turns["observations"].unique(dim=0)) == len(replay)


def test_whole_dialogues_are_drawn_and_the_newest_ones_are_found():
    replay, _ = counted(10**6, 100)
    drawn = replay.whole(40, seeded())
    lengths = drawn["ended"].nonzero()[:, 0].diff(prepend=torch.tensor([-1]))
    firsts = torch.cat([torch.tensor([0]), drawn["ended"].nonzero()[:-1, 0] + 1])
    assert len(lengths) == 40
    assert torch.equal(lengths.float(), drawn["observations"][firsts, 0] % 5 + 1)
    newest = replay.newest(2)
    numbers = [int(own["observations"][0, 0]) for own in dialogues(replay)[-2:]]
    assert newest["observations"][:, 0].unique_consecutive().tolist() == numbers
    assert newest["ended"].sum() == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns["lengths"].__setitem__(0, columns["lengths"][0] + 1),  # a turn more than there are
        lambda columns: columns["actions"].__setitem__(0, 3),  # of three actions
        lambda columns: columns["actions"].__setitem__(0, -1),
        lambda columns: columns.update(rewards=columns["rewards"].astype(np.float64)),
        lambda columns: columns.update(masks=columns["masks"][:, :0]),
        lambda columns: columns.pop("held"),
    ],
)
def test_numbers_of_another_file_are_refused(tmp_path, change):
    replay, _ = counted(100, 50)
    replay.save(tmp_path)
    columns = load_file(tmp_path / "replay.safetensors")
    change(columns)
    save_file(columns, tmp_path / "replay.safetensors")
    with pytest.raises(UserError, match=r"replay\.safetensors: is damaged"):
        replay.load(tmp_path)
    replay.save(tmp_path)
    with pytest.raises(UserError, match="2 features and 3 actions"):
        replay.load(tmp_path, (2, 4))
    replay.load(tmp_path, (2, 3))


def test_counters_that_are_damaged_are_refused(tmp_path):
    policy = build_policy("dqn", {"hidden_sizes": [4]}, PolicySpec(3, 4))
    policy.save(tmp_path)
    for steps in ("null", "-1", str(2**53 + 1)):
        (tmp_path / "policy.json").write_text(f'{{"num_dialogues": 1, "num_steps": {steps}, "due": 0}}')
        with pytest.raises(UserError, match="does not fit this policy, or is damaged"):
            policy.load(tmp_path)


def test_steps_are_due_when_dialogues_of_three_turns_end_and_a_rest_waits():
    policy = build_policy("dqn", {"hidden_sizes": [4], "steps_per_dialogue": 0.4}, PolicySpec(3, 4))
    sampler, made = Sampler(Colours, 0, 1), []
    for _ in range(15):
        for one in sampler.sample(policy, 1):
            policy.observe(one)
        policy.update()
        made.append((policy.num_dialogues, policy.num_steps))
    assert made[2::3] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]
    assert made[1::3] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]
    assert policy.update() == {}


def test_each_step_of_each_seed_draws_turns_of_its_own(monkeypatch):
    drawn = []
    for seed in (0, 1, 2):
        policy = build_policy("dqn", {"hidden_sizes": [4], "steps_per_dialogue": 3}, PolicySpec(3, 4, seed=seed))
        monkeypatch.setattr(policy, "_step", lambda generator: drawn.append(generator.initial_seed()) or {})
        for one in Sampler(Colours, 0, 1).sample(policy, 6):
            policy.observe(one)
        policy.update()
    assert len(set(drawn)) == len(drawn) == 18


@pytest.mark.parametrize("name", LEARNERS)
def test_a_number_that_is_not_finite_stops_the_run(name):
    policy = build_policy(name, {"hidden_sizes": [4], "steps_per_dialogue": 1}, PolicySpec(3, 4))
    for one in Sampler(Colours, 0, 1).sample(policy, 6):
        policy.observe(one)
    policy.update()
    one.rewards[:] = np.nan
    policy.observe(one)
    with pytest.raises(RunStopped, match=r"step 3: the (loss|natural gradient) is n"):
        policy.update()


def saved(policy, folder):
    """The files of a policy that is saved into a new folder, by name."""
    folder.mkdir()
    policy.save(folder)
    return {str(path): data for path, data in contents(folder).items()}


def go_on(policy, sampler, num_updates):
    for _ in range(num_updates):
        for one in sampler.sample(policy, 20):
            policy.observe(one)
        policy.update()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_saved_policy_goes_on_bit_for_bit(name, tmp_path):
    args = {"hidden_sizes": [8], "steps_per_dialogue": 0.7, "batch_size": 8}
    args |= {} if name == "enac" else {"capacity": 60}
    whole, stopped, resumed = (build_policy(name, args, PolicySpec(3, 4, seed=1)) for _ in range(3))
    go_on(whole, Sampler(Colours, 0, 8), 8)
    first, second = Sampler(Colours, 0, 8), Sampler(Colours, 0, 8)
    go_on(stopped, first, 4)
    files = saved(stopped, tmp_path / "half")
    assert set(files) == {"policy.safetensors", "optimizer.safetensors", "replay.safetensors", "policy.json"}
    resumed.load(tmp_path / "half")
    second.load_state_dict(first.state_dict())
    go_on(resumed, second, 4)
    assert whole.num_steps > 20
    assert saved(resumed, tmp_path / "resumed") == saved(whole, tmp_path / "whole")


@pytest.mark.parametrize("name", ["dqn", "acer"])
def test_a_policy_whose_replay_lies_on_disk_learns_and_goes_on_bit_for_bit(name, tmp_path):
    args = {"hidden_sizes": [8], "steps_per_dialogue": 0.7, "batch_size": 8, "capacity": 60}
    in_memory = build_policy(name, args, PolicySpec(3, 4, seed=1))
    on_disk, resumed = (build_policy(name, args | {"in_memory": 5}, PolicySpec(3, 4, seed=1)) for _ in range(2))
    go_on(in_memory, Sampler(Colours, 0, 8), 6)
    sampler = Sampler(Colours, 0, 8)
    go_on(on_disk, sampler, 3)
    saved(on_disk, tmp_path / "half")
    resumed.load(tmp_path / "half")
    go_on(resumed, sampler, 3)
    assert len(resumed.replay.stack._memory) < len(in_memory.replay.stack._memory) == len(resumed.replay.stack.lengths)
    assert saved(resumed, tmp_path / "resumed") == saved(in_memory, tmp_path / "memory")


@pytest.mark.parametrize(
    ("name", "key"), [("bbqn", "target_share"), ("acer", "average_share"), ("tracer", "average_share")]
)
def test_the_slow_network_follows_by_its_share_in_each_step(name, key):
    policy = build_policy(name, {"hidden_sizes": [4], "batch_size": 4, key: 0.25}, PolicySpec(3, 4))
    for one in Sampler(Colours, 0, 1).sample(policy, 6):
        policy.observe(one)
    before = [weight.clone() for weight in policy.learner.slow.parameters()]
    policy._step(seeded())
    pairs = zip(before, policy.learner.policy.parameters(), strict=True)
    for (own, leading), after in zip(pairs, policy.learner.slow.parameters(), strict=True):
        torch.testing.assert_close(after, 0.75 * own + 0.25 * leading)
    assert any((own != leading).any() for own, leading in zip(before, policy.learner.policy.parameters(), strict=True))


@pytest.mark.parametrize("name", LEARNERS)
def test_masked_actions_are_never_taken(name):
    policy = build_policy(name, {"hidden_sizes": [8]}, PolicySpec(3, 4))
    masks = np.tile([False, True, False, True], (200, 1))
    streams = [Random(n) for n in range(200)]
    for deterministic in (False, True):
        actions, _ = policy.act(np.random.default_rng(0).random((200, 3), np.float32), masks, deterministic, streams)
        assert set(actions.tolist()) <= {1, 3}
