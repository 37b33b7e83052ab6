import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.multi_domain.topics import Topics
from rlhf_dialog.task_oriented.world.acts import parse_acts
from tests.parts.small_world import small_world

WORLD = small_world().only(["restaurant", "hotel", "train"])
NAMES = "hotel, restaurant or train"


def talk(*turns, **args):
    """The topic manager after these turns, and what it said last."""
    topics = Topics(WORLD, **args)
    said = topics.begin()
    for turn in turns:
        said = topics.hear(turn)
    return topics, said


def test_it_greets_and_asks_which_topic():
    assert talk()[1] == f"Hello! I can help you with {NAMES}. What are you looking for?"
    assert talk("hi there")[1] == f"Hello! Please name one of these: {NAMES}."
    for said in ("hm", "in the north", "at 09:00"):  # several have a north, and a number may be anybody's
        assert talk(said)[1] == f"I am sorry, I did not understand that. Please name one of these: {NAMES}."


@pytest.mark.parametrize(
    ("turns", "topic"),
    [
        (["I need a hotel"], "hotel"),
        (["Any RESTAURANTS around?"], "restaurant"),
        (["something nordic, please"], "restaurant"),  # only restaurants are nordic
        (["in the north"], ""),  # hotels are in the north too
        (["I need a hotel", "for 4 people", "in the north"], "hotel"),
        (["I need a hotel", "is there nordic food?"], "hotel"),  # a value does not change the topic
        (["I need a hotel", "and a train then"], "train"),
        (["I need a hotel", "a hotel near a restaurant"], "hotel"),
        (["trainers"], ""),
        (["somewhere for dinner"], "restaurant"),
    ],
)
def test_words_decide_whose_policy_speaks(turns, topic):
    topics, said = talk(*turns, words={"restaurant": ["dinner"]})
    assert topics.topic == topic
    assert (said == "") == bool(topic)


def test_acts_decide_too():
    topics, said = talk(parse_acts("inform(train-day=friday)"))
    assert (topics.topic, said) == ("train", "")
    assert topics.hear(parse_acts("request(hotel-phone)")) == ""
    assert topics.topic == "hotel"
    assert topics.hear(parse_acts("affirm()")) == ""
    assert topics.topic == "hotel"
    assert topics.hear(parse_acts("bye()")) == "Goodbye!"
    assert (topics.is_over, topics.topic) == (True, "")


def test_several_topics_at_once_are_asked_about_and_goodbye_ends_it():
    topics, said = talk("a hotel and a train")
    assert (topics.topic, said) == ("", "Is it about hotel or train? We can do one after the other.")
    assert topics.hear("the hotel") == ""
    assert topics.hear("that is all, Bye!") == "Goodbye!"
    assert topics.is_over


def test_it_hangs_up_after_the_attempts_and_a_topic_begins_them_again():
    topics, _ = talk("hm", "hm")
    assert not topics.is_over
    assert topics.hear("hm").endswith("Goodbye!")
    assert topics.is_over
    assert talk("hm", attempts=1)[0].is_over
    assert not talk("hm", "hm", "train", attempts=3)[0].is_over
    assert topics.begin().startswith("Hello!")
    assert not topics.is_over


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"restaurants": ["dinner"]}, "'restaurants' is unknown; did you mean 'restaurant'"),
        ({"restaurant": "dinner"}, "'dinner' for 'restaurant'"),
        ({"restaurant": [" "]}, r"\[' '\] for 'restaurant'"),
    ],
)
def test_a_mistake_in_the_words_is_named(words, said):
    with pytest.raises(UserError, match=said):
        talk("dinner", words=words)
