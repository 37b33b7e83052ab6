from random import Random

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.episode_stack import EpisodeStack
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.replay import Replay
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from tests.parts.several_policies import straight_and_resumed, watched
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


def test_turns_and_whole_dialogues_are_drawn_and_the_newest_ones_are_found():
    replay, _ = counted(10**6, 100)
    turns = replay.turns(2000, seeded())
    goes_on = ~turns["ended"]
    following = turns["observations"][goes_on] + torch.tensor([0.0, 1.0])  # of the same dialogue
    assert torch.equal(turns["next_observations"][goes_on], following)
    assert turns["next_masks"].shape == turns["masks"].shape == (2000, 3)
    assert len(turns["observations"].unique(dim=0)) == len(replay)
    drawn = replay.whole(40, seeded())
    lengths = drawn["ended"].nonzero()[:, 0].diff(prepend=torch.tensor([-1]))
    firsts = torch.cat([torch.tensor([0]), drawn["ended"].nonzero()[:-1, 0] + 1])
    assert len(lengths) == 40
    assert torch.equal(lengths.float(), drawn["observations"][firsts, 0] % 5 + 1)
    newest = replay.newest(2)
    numbers = [int(own["observations"][0, 0]) for own in dialogues(replay)[-2:]]
    assert newest["observations"][:, 0].unique_consecutive().tolist() == numbers
    assert newest["ended"].sum() == 2


def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path):
    replay, _ = counted(100, 50)
    replay.save(tmp_path)
    columns, before = load_file(tmp_path / "replay.safetensors"), len(replay)
    save_file({name: column for name, column in columns.items() if name != "held"}, tmp_path / "replay.safetensors")
    with pytest.raises(UserError, match=r"replay\.safetensors: is damaged"):
        replay.load(tmp_path)
    assert len(replay) == before


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
        watched(policy, Colours, 6).update()
    assert len(set(drawn)) == len(drawn) == 18


@pytest.mark.parametrize("name", LEARNERS)
def test_a_number_that_is_not_finite_stops_the_run(name):
    policy = build_policy(name, {"hidden_sizes": [4], "steps_per_dialogue": 1}, PolicySpec(3, 4))
    watched(policy, Colours, 6).update()
    (one, *_) = Sampler(Colours, 0, 1).sample(policy, 3)
    one.rewards[:] = np.nan
    policy.observe(one)
    with pytest.raises(RunStopped, match=r"step 3: the (loss|natural gradient) is n"):
        policy.update()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_saved_policy_goes_on_bit_for_bit(name, tmp_path):
    args = {"hidden_sizes": [8], "steps_per_dialogue": 0.7, "batch_size": 8}
    args |= {} if name == "enac" else {"capacity": 60}
    on_disk = {"in_memory": 5} if name in ("dqn", "acer") else {}

    def build(stops):
        return build_policy(name, args | (on_disk if stops else {}), PolicySpec(3, 4, seed=1))

    (whole, files), (resumed, others) = straight_and_resumed(tmp_path, build, Colours, 8, 20)
    assert files == others
    assert {*map(str, files)} == {"policy.safetensors", "optimizer.safetensors", "replay.safetensors", "policy.json"}
    assert whole.num_steps > 20
    assert (len(resumed.replay.stack._memory) < len(whole.replay.stack._memory)) == bool(on_disk)


@pytest.mark.parametrize(
    ("name", "key"),
    [("dqn", "target_share"), ("bbqn", "target_share"), ("acer", "average_share"), ("tracer", "average_share")],
)
def test_the_slow_network_follows_by_its_share_in_each_step(name, key):
    args = {"hidden_sizes": [4], "batch_size": 4, key: 0.25}
    policy = watched(build_policy(name, args, PolicySpec(3, 4)), Colours, 6)
    before = [weight.clone() for weight in policy.learner.slow.parameters()]
    policy._step(seeded())
    pairs = zip(before, policy.learner.policy.parameters(), strict=True)
    for (own, leading), after in zip(pairs, policy.learner.slow.parameters(), strict=True):
        torch.testing.assert_close(after, 0.75 * own + 0.25 * leading)
    assert any((own != leading).any() for own, leading in zip(before, policy.learner.policy.parameters(), strict=True))


def dialogue(number, length):
    """Turn t of dialogue n: seen [n, t], good where n + t is even, paid n + t / 10."""
    turns = np.arange(length)
    seen = np.stack([np.full(length, number), turns], axis=1).astype(np.float32)
    return {"seen": seen, "good": (number + turns) % 2 == 0, "paid": number + turns / 10}


def filled(capacity, in_memory, lengths):
    """A stack of dialogues 0, 1, ... of these lengths, and the same as a list."""
    stack, kept = EpisodeStack(capacity, in_memory), []
    for number, length in enumerate(lengths):
        stack.append(dialogue(number, length))
        kept.append(dialogue(number, length))
        while len(kept) > 1 and sum(len(own["paid"]) for own in kept) > capacity:
            kept.pop(0)
    return stack, kept


def joined(dialogues):
    return {name: np.concatenate([own[name] for own in dialogues]) for name in ("seen", "good", "paid")}


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, column in wanted.items():
        np.testing.assert_array_equal(found[name], column, strict=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_stack_gives_what_a_list_of_dialogues_gives(seed, tmp_path):
    random = Random(seed)
    capacity, in_memory = random.choice([1, 7, 30, 100]), random.choice([0, 1, 5, 20, 200])
    stack, kept = filled(capacity, in_memory, [random.randint(1, 9) for _ in range(random.randint(1, 60))])
    everything, lengths = joined(kept), [len(own["paid"]) for own in kept]
    assert (len(stack), stack.lengths.tolist()) == (sum(lengths), lengths)
    assert stack.ends.tolist() == np.cumsum(lengths).tolist()
    rows = np.array([random.randrange(len(stack)) for _ in range(40)])
    assert_same(stack.rows(rows), {name: column[rows] for name, column in everything.items()})
    assert_same(stack.rows(rows, ["paid"]), {"paid": everything["paid"][rows]})
    more, others = [dialogue(900, 3), dialogue(901, 2)], {"numbers": np.arange(4), "flags": np.ones(0, dtype=np.uint8)}
    stack.save(tmp_path / "saved", more, others)
    assert_same(load_file(tmp_path / "saved"), joined([*kept, *more]) | others)


def on_disk(stack):
    return [] if stack._disk is None else [n for (n,) in stack._disk.execute("SELECT number FROM dialogues")]


def test_older_dialogues_are_on_disk_until_they_make_room():
    assert on_disk(filled(100, 10, [3] * 7)[0]) == [0, 1, 2, 3]
    assert on_disk(filled(100, 21, [3] * 7)[0]) == []
    assert on_disk(filled(18, 10, [3] * 8)[0]) == [2, 3, 4]
    with pytest.raises(IndexError):
        filled(100, 5, [3] * 7)[0].rows([21])


def test_a_full_disk_is_reported_and_loses_nothing():
    stack, kept = filled(10**6, 10, [3] * 6)

    def fill():
        while len(kept) < 400:
            kept.append(dialogue(len(kept), 3))
            stack.append(kept[-1])

    stack._disk.execute("PRAGMA max_page_count = 1")  # SQLite then says that the disk is full
    with pytest.raises(UserError, match=r"disk is full; free some .*TMPDIR"):
        fill()
    assert_same(stack.rows(range(len(stack))), joined(kept))
    stack._disk.execute("PRAGMA max_page_count = 100000")
    fill()
    assert_same(stack.rows(range(len(stack))), joined(kept))
