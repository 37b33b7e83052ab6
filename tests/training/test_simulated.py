"""Dialogues with environments by number: the same ones however many there are side by side."""

import torch

from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.training.simulated import DialogueCounter, Simulated


def numbers(source, asked):
    """Seeds of the users, and the first random number of each stream of the policy."""
    deal = source.deal([source[number] for number in asked])
    return deal.seeds, [torch.rand((), generator=stream).item() for stream in deal.streams]


def test_a_dialogue_depends_on_seed_split_and_number_alone():
    source = Simulated(list, 7, EpisodeLimits())
    seeds, draws = numbers(source, range(6))
    assert len(set(seeds)) == len(set(draws)) == 6
    for number in (3, 5):
        assert numbers(Simulated(list, 7, EpisodeLimits()), [number]) == ([seeds[number]], [draws[number]])
    for other in (Simulated(list, 8, EpisodeLimits()), Simulated(list, 7, EpisodeLimits(), "validation")):
        assert not {*numbers(other, range(6))[0]} & {*seeds}


def test_copies_of_a_dialogue_have_the_same_user_and_another_policy():
    seeds, draws = numbers(Simulated(list, 0, EpisodeLimits()), [4, 4, 9])
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(draws)) == 3


def test_environments_are_built_once():
    built = []
    source = Simulated(lambda: built.append(0), 0, EpisodeLimits())
    numbers(source, range(3))
    numbers(source, range(2))
    assert len(built) == 3


def test_the_numbers_go_on_from_a_stored_position():
    first, second = DialogueCounter(), DialogueCounter()
    assert first.take(3) == [0, 1, 2]
    second.load_state_dict(first.state_dict())
    assert second.take(2) == first.take(2) == [3, 4]
