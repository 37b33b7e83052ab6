"""Acts in a language model's words."""

from random import Random

import pytest

from experiments.users import model_words
from experiments.users.model_words import LMWords
from rlhf_dialog.task_oriented.world.acts import Act, format_acts
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users import AgendaUser
from rlhf_dialog.task_oriented.world.words import system_words, user_words
from tests.parts.small_domain import small_domain

TEA = small_domain()
WORDS = user_words(TEA)
GREEN, NORTH, TYPE = Act("inform", "tea", "green"), Act("inform", "area", "north"), Act("inform", "type", "cafe")


@pytest.fixture
def writes(monkeypatch):
    """Lets the model write what the function says of the acts."""
    read = []

    def set_up(sentence):
        def written(responder, prompts, streams):
            read.extend(prompts)
            return [sentence(prompt[0][-1], rng) for prompt, rng in zip(prompts, streams, strict=True)]

        monkeypatch.setattr(model_words, "write_turns", written)
        return read

    return set_up


@pytest.mark.parametrize(
    ("text", "acts", "carried"),
    [
        ("Some green tea up north, please!", [GREEN, NORTH], True),
        ("Hello, a cafe for green tea", [GREEN], True),
        ("green tea in the north", [Act("hello"), TYPE, NORTH, GREEN], True),
        ("a cafe", [TYPE], True),
        ("hello", [TYPE], False),
        ("green tea", [GREEN, NORTH], False),
        ("green tea in the north", [GREEN], False),
        ("black tea", [GREEN], False),
        ("What is the phone number?", [Act("request", "phone")], True),
        ("bye", [Act("bye")], True),
        ("", [Act("hello")], False),
    ],
)
def test_what_a_text_carries(text, acts, carried):
    assert LMWords(WORDS, None).carries(text, acts) is carried


def test_the_models_words_are_said_and_the_templates_help_out(writes):
    read = writes(lambda acts, rng: "green tea , north !" if "green" in acts else "Nonsense")
    speak = LMWords(WORDS, None, tries=2)
    assert speak([GREEN, NORTH], Random(0)) == "green tea , north !"
    texts = speak.say_all([[GREEN], [Act("bye")], [NORTH, GREEN]], [Random(1), Random(2), Random(3)])
    assert texts[1] in ("Goodbye .", "That is all , goodbye .")
    assert WORDS.read(texts[0]) == [GREEN]
    assert texts[2] == "green tea , north !"
    assert (speak.num_turns, speak.num_fallbacks) == (4, 2)
    assert len(read) == 1 + 3 + 2
    assert read[0] == [[f"{model_words.INSTRUCTION} inform(tea=green) inform(area=north)"]]


def test_the_acts_are_those_of_the_agenda_whatever_the_model_writes(chat_agent):
    def transcript(nlg):
        user = AgendaUser(TEA)
        environment = GoalOriented(user, FocusTracker(TEA), Evaluator(TEA), system_words(TEA).read, nlg)
        environment.reset(seed=5)
        ended = False
        while not ended:
            _, _, terminated, truncated, info = environment.step("How about ada ? Its phone number is 11 .")
            ended = terminated or truncated
        return [format_acts(acts) for acts in info["user_acts"]], info["success"]

    speak = LMWords(WORDS, chat_agent, tries=1)
    assert transcript(speak) == transcript(WORDS.say)
    assert speak.num_fallbacks == speak.num_turns > 1
