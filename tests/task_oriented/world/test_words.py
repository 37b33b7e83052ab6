import doctest
from random import Random

import pytest

from rlhf_dialog.task_oriented.domains import Domain, load_domain
from rlhf_dialog.task_oriented.world import acts
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.words import system_words, user_words
from tests.parts.small_domain import small_domain

DOMAIN = load_domain("restaurant")
ODD = Domain(
    "odd",
    "tea house",
    {"food": ["fish & chips", "fish", "st. john's bread", "no"], "parking_space": ["yes", "9 to 5"]},
    ["phone", "food"],
    [
        {"name": "who? what!", "food": "fish", "parking_space": "yes", "phone": "(0) 1.2"},
        {"name": "the food", "food": "no", "parking_space": "9 to 5", "phone": "1 , 2"},
    ],
)
DOMAINS = [DOMAIN, small_domain(), ODD]
SPEAKERS = [(domain, speaker(domain)) for domain in DOMAINS for speaker in (user_words, system_words)]


def known_acts(domain, one):
    """Every act that the templates have, with values of the domain."""
    for intent, slot, kind in one.templates:
        for of_slot in (s for s in one.slots if s != "type") if slot == "*" else [slot]:
            values = one.values.get(of_slot, {}).values() if kind == "value" else [kind]
            yield from (Act("inform" if intent == "missed" else intent, of_slot, value) for value in values)


ACTS = [sorted(set(known_acts(*speaker)), key=str) for speaker in SPEAKERS]


@pytest.mark.parametrize("number", range(len(SPEAKERS)))
def test_every_act_is_read_as_it_was_said(number):
    _, one = SPEAKERS[number]
    for act in ACTS[number]:
        for seed in range(3):
            text = one.say([act], Random(seed))
            assert one.read(text) == [act], text


SYSTEM, PERSON, GUEST = system_words(DOMAIN), user_words(DOMAIN), user_words(DOMAINS[1])


@pytest.mark.parametrize(
    ("words", "text", "acts"),
    [
        (SYSTEM, "How about the amber lemon? It's cheap!", "inform(name=the amber lemon) inform(pricerange=cheap)"),
        (SYSTEM, "the amber lemon is lovely", "inform(name=the amber lemon)"),
        (SYSTEM, "Its phone number is 0123 .", "inform(phone=0123)"),
        (SYSTEM, "How about Chez Ada?", "inform(name=chez ada)"),
        (SYSTEM, "What area do you have in mind?", "request(area)"),
        (SYSTEM, "So you want thai food ?", "confirm(food=thai)"),
        (SYSTEM, "Sorry, no luck.", "inform(name=none)"),
        (SYSTEM, "Anything more?", "reqmore()"),
        (SYSTEM, "Bye bye", "bye()"),
        *((SYSTEM, text, "null()") for text in ("blah", "", ". . ?")),
        (PERSON, "hi, a cheap thai place please", "inform(pricerange=cheap) inform(food=thai)"),
        (PERSON, "whats the phone number?", "request(phone)"),
        (PERSON, "is it cheap?", "confirm(pricerange=cheap)"),
        (PERSON, "nope", "negate()"),
        (PERSON, "thanks, bye", "bye()"),
        (PERSON, "I don't care", "inform(=dontcare)"),
        (PERSON, "anything else?", "reqalts()"),
        (GUEST, "I need their phone number and the area please", "request(phone)"),
        (GUEST, "yes, what is the phone number?", "request(phone)"),
        (GUEST, "the phone number of ada", "inform(name=ada) request(phone)"),
        (GUEST, "which area is it in?", "request(area)"),
        (GUEST, "green tea. I do not care about the area", "inform(tea=green) inform(area=dontcare)"),
        (GUEST, "I have no preference", "inform(=dontcare)"),
        (GUEST, "something northly, with black tea", "inform(area=north) inform(tea=black)"),
        (user_words(ODD), "fish & chips please", "inform(food=fish & chips)"),
    ],
)
def test_what_is_said_in_other_words(words, text, acts):
    assert format_acts(words.read(text)) == acts


def test_the_sentences_vary_with_the_stream_and_tell_what_was_not_found():
    speaker = user_words(DOMAIN)
    said = {speaker.say([Act("inform", "food", "thai")], Random(seed)) for seed in range(20)}
    assert said == {"I would like thai food .", "It should serve thai food ."}
    assert speaker.say([Act("hello")], Random(4)) == speaker.say([Act("hello")], Random(4))
    turn = [Act("inform", "name", "none"), Act("inform", "food", "thai"), Act("inform", "area", "dontcare")]
    text = system_words(DOMAIN).say(turn, Random(0))
    assert text == "I am sorry , I found nothing . I looked for thai food . I looked for any area ."


@pytest.mark.parametrize(
    "turn",
    [
        [Act("hello"), Act("request", "phone"), Act("inform", "tea", "green"), Act("inform", "", "dontcare")],
        [Act("inform", "phone", "(0) 1.2"), Act("inform", "name", "a=b (c)"), Act("bye")],
        [Act("inform", "name", "")],
        [],
    ],
)
def test_the_line_is_read_as_it_was_written(turn):
    assert parse_acts(format_acts(turn)) == turn
    assert format_acts([Act("request", "phone"), Act("inform", "", "dontcare")]) == "request(phone) inform(=dontcare)"
    assert parse_acts("How about (maybe) ada ?") == []
    assert doctest.testmod(acts).failed == 0
