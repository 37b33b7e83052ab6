"""The reward examples/by_name.py: a table of right and wrong replies to Zara, written before the reward."""

from dataclasses import replace

import pytest

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import LikelihoodPrice
from tests.parts.processes import ROOT
from tests.test_ask_back import example  # noqa: F401  the fixture

NAMED = {"name": "Zara"}
ONCE, ADDRESS, ALL = 0.2, 0.5, 1.0  # the name once; as an address; in a whole reply of 5 to 25 words besides


def by(example, reply, name="Zara", truncated=False):  # noqa: F811
    dialogue = Dialogue(["Hi ."], response=reply, truncated=truncated, meta={"name": name})
    return example("by_name.py", "ByName")([dialogue])[0]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        # first, or after at most two words of greeting
        ("Zara, I'm so sorry to hear about your grandmother.", ALL),
        ("Zara! That is great news for you and for them.", ALL),
        ("zara. I think the train leaves at nine.", ALL),
        ("Hi Zara, how was the long walk to school?", ALL),
        ("Good morning, Zara! Did you sleep well last night?", ALL),
        ("Good morning Zara, did you sleep well last night?", ALL),
        ("Thank you Zara, I like the sea as well.", ALL),
        # between a comma and an end mark
        ("I'm sorry for your loss, Zara.", ALL),
        ("That sounds like a hard day, Zara! Get some rest.", ALL),
        ("What did your sister say to that, Zara?", ALL),
        ("You know, Zara, I have never seen the sea.", ALL),
        # an address, but not a whole reply of 5 to 25 words
        ("Zara, I see.", ADDRESS),
        ("Zara, I think that we should go and", ADDRESS),
        ("Zara, " + "and " * 25 + "so on.", ADDRESS),
        # no address, or none of this person
        ("I think that Zara is a lovely name for you.", ONCE),
        ("Zara is here, and I think she likes the sea.", ONCE),
        ("It is a long way from Zara to the sea.", ONCE),
        ("The old and lovely Zara, I think, is by the sea.", ONCE),
        ("Zara, a kind and gentle creature, walks by the sea.", ONCE),
        ("Zara, who likes the sea, has been there for long.", ONCE),
        ("My son, Zara, likes the sea and walks to it.", ONCE),
        ("I like the sea and the long walks to it.", 0.0),
        ("Zara, I like the sea, and you too, Zara.", 0.0),
        ("I like Zara's idea of a walk by the sea.", 0.0),
        ("Zarah, I like the sea and the walks to it.", 0.0),
        # the person's name as its own, or talk about the chat
        ("Hi, I'm Zara, and I like the sea as well.", 0.0),
        ("I am Zara, and I like the sea as well.", 0.0),
        ("Hello there, my name is Zara, and I like the sea.", 0.0),
        ("I am chatting with Zara, who likes the sea as well.", 0.0),
        # another name of the list
        ("Elif, I like the sea and the walks to it.", 0.0),
        ("Zara, I like the sea, and so does Elif.", 0.0),
        ("Hello Zara and Elif, how was the walk to school?", 0.0),
        ("", 0.0),
    ],
)
def test_the_right_person_is_called_once_in_a_whole_reply(example, reply, score):  # noqa: F811
    assert by(example, reply) == pytest.approx(score)


def test_a_reply_that_was_cut_is_not_whole(example):  # noqa: F811
    assert by(example, "Zara, I like the sea and the walks to it.", truncated=True) == pytest.approx(ADDRESS)


def test_names_are_compared_without_case_and_composed(example):  # noqa: F811
    assert by(example, "ŁUKASZ, I like the sea and the walks to it.", "Łukasz") == ALL
    assert by(example, "Benoi\u0302t, I like the sea and the walks to it.", "Benoît") == ALL
    assert by(example, "Jose, I like the sea and the walks to it.", "José") == 0.0


def test_its_yaml_names_the_reward_and_holds_the_kl(example):  # noqa: F811
    config = load_config(ROOT / "configs" / "by_name.yaml", {})
    parts = {part["id"]: part.get("args") or {} for part in config.reward_class.args["parts"]}
    assert set(parts) == {"ByName", "Kind", "Fits", "CopyPrice"}
    assert parts["Fits"]["model"] == config.model_path
    assert config.kl_rate > 0
    assert config.kl_target <= 0.3


@pytest.mark.parametrize(
    ("reply", "hard", "score"),
    [
        ("Zara, I'm so sorry for your loss.", True, 1.0),
        ("That sounds hard, Zara.", True, 1.0),
        ("Zara, I'm glad that you went to see it.", True, -1.0),
        ("Zara, I'm sorry, have fun!", True, -1.0),
        ("Zara, your train was late.", True, 0.0),
        ("Zara, I'm sorry to hear that.", False, -1.0),
        ("Zara, I'm glad that you went to see it!", False, 0.0),
        ("Zara, how can I help you today?", False, -1.0),
        ("Zara, I'm sorry, how can I assist you?", True, -1.0),
    ],
)
def test_a_hard_line_gets_sympathy_and_no_other(example, reply, hard, score):  # noqa: F811
    dialogue = Dialogue(["Hi ."], response=reply, meta={"name": "Zara", "hard": hard})
    example("by_name.py", "ByName")
    assert RewardFactory.create("Kind", {})([dialogue]) == [score]


@pytest.mark.parametrize(
    ("said", "unsaid", "score"), [(-1.0, -1.5, 0.5), (-1.5, -1.25, -0.25), (-1.0, -3.0, 0.7), (-4.0, -1.0, -0.7)]
)
def test_a_reply_fits_by_what_the_newest_turn_adds_to_its_likelihood(example, monkeypatch, said, unsaid, score):  # noqa: F811
    """The reply is read without the name, the turn without those before it."""
    reply = "That must be hard for you."
    table = {(("I was fired.",), reply): said, (("...",), reply): unsaid}
    monkeypatch.setattr(LikelihoodPrice, "__init__", lambda *_: None)
    monkeypatch.setattr(
        LikelihoodPrice, "means", lambda _, dialogues: [table[(*one.prompt_turns,), one.response] for one in dialogues]
    )
    dialogue = Dialogue(["Hi .", "Hello .", "I was fired."], response="Zara, that must be hard for you.", meta=NAMED)
    assert example("by_name.py", "Fits", model="m")([dialogue]) == pytest.approx([score])
    ended = replace(dialogue, response="That must be hard for you, Zara.")
    assert RewardFactory.create("Fits", {"model": "m"})([ended]) == pytest.approx([score])
    assert RewardFactory.create("Fits", {"model": "m"})([replace(dialogue, response=reply)]) == [0.0]
