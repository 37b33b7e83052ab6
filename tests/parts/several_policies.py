"""Dialogues about several made-up domains, and policies that go on after they were saved."""

import numpy as np

from rlhf_dialog.task_oriented.policies.base import Episode, PolicySpec
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.world.acts import parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiActions, MultiLayout
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState
from tests.parts.folders import contents
from tests.parts.small_world import small_world

THREE = small_world().only(["restaurant", "hotel", "attraction"])
TWO = small_world().only(["restaurant", "hotel"])


def setting_of(domain, seed=0):
    layout = MultiLayout(domain)
    return PolicySpec(layout.size, len(layout.names), seed, domain)


def seen(domain, *turns, action=None, turn=0.0):
    """Observation and mask after these turns of system and user."""
    state = DialogueState(domain)
    for system, user in turns:
        state.update(parse_acts(system), parse_acts(user))
    return MultiLayout(domain).encode(state, action, turn), MultiActions(domain).mask(state)


def dialogue(domain, users, actions, rewards, number=0, extras=None):
    """A whole dialogue: what the user has said before each turn, the actions by name, and the rewards."""
    names, rows = MultiLayout(domain).names, [seen(domain, ("", said)) for said in users]
    zeros = np.zeros(len(actions), np.float32)
    return Episode(
        *(np.stack(column) for column in zip(*rows, strict=True)),
        np.array([names.index(name) for name in actions]),
        *(zeros, np.array(rewards, np.float32), zeros, True, False),
        *(rows[-1][0], number, rewards[-1] > 0),
        extras=extras or {},
    )


def piece(one, first, last):
    """The turns `first` to `last` of a whole dialogue, as the sampler cuts them."""
    names = ("observations", "masks", "actions", "logprobs", "rewards", "values")
    rows = {name: getattr(one, name)[first:last] for name in names}
    ended = last == len(one)
    following = one.last_observation if ended else one.observations[last]
    extras = {name: column[first:last] for name, column in one.extras.items()}
    end = {"terminated": ended, "truncated": False, "last_observation": following}
    return Episode(**rows, **end, dialogue=one.dialogue, start=first, extras=extras)


def make(domain):
    return lambda: MultiActLevel(domain, end_reward=(20, 0))


def watched(policy, make, num_turns, num_envs=1):
    """The policy, which has observed its own dialogues."""
    for episode in Sampler(make, 0, num_envs).sample(policy, num_turns):
        policy.observe(episode)
    return policy


def trained(policy, sampler, iterations, turns=16):
    for _ in range(iterations):
        for episode in sampler.sample(policy, turns):
            policy.observe(episode)
        policy.update()


def saved(policy, folder):
    """The files of a policy that is saved into a new folder."""
    folder.mkdir()
    policy.save(folder)
    return contents(folder)


def straight_and_resumed(folder, build, make, num_envs, turns, iterations=4):
    """A policy after twice these iterations, and one that was saved (`build(True)`) and built again between them; each with
    what it saves."""
    straight, half, resumed = build(False), build(True), build(True)
    trained(straight, Sampler(make, 0, num_envs), 2 * iterations, turns)
    first, second = Sampler(make, 0, num_envs), Sampler(make, 0, num_envs)
    trained(half, first, iterations, turns)
    saved(half, folder / "half")
    resumed.load(folder / "half")
    second.load_state_dict(first.state_dict())
    trained(resumed, second, iterations, turns)
    return [(straight, saved(straight, folder / "straight")), (resumed, saved(resumed, folder / "resumed"))]
