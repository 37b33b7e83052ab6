"""What is read of a turn: titles, sections, and which of several titles is meant.

A lookup behind a policy: who answers a turn, what is said of pages, and what hostile pages cannot do."""

import json
import logging

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import LookupFailed, OfflineFile, WikiPage
from rlhf_dialog.task_oriented.policies.multi_domain.knowledge import (
    Knowledge,
    KnowledgeConfig,
    choose_title,
    find_heading,
    find_title,
    wants_more,
)
from rlhf_dialog.task_oriented.policies.multi_domain.mediawiki import MediaWiki
from rlhf_dialog.task_oriented.policies.sampling.in_words import PolicyInWords
from rlhf_dialog.task_oriented.world.restaurant import restaurant
from rlhf_dialog.task_oriented.world.words import slot_in_words
from tests.parts.servers import serving


@pytest.mark.parametrize(
    ("turn", "title"),
    [
        ("What is the Moon?", "Moon"),
        ("who was Ada Lovelace", "Ada Lovelace"),
        ("What's an aubergine , please ?", "aubergine"),
        ("Could you please tell me about chess?", "chess"),
        ("Tell me more about The Hague.", "The Hague"),
        ("look up 'Zürich'", "Zürich"),
        ("What is C++?", "C++"),
        ("What is it called ?", None),
        ("Who are you?", None),
        ("What is your name?", None),
        ("What else is there ?", None),
        ("I would like chinese food .", None),
        ("What is ?", None),
        ("What is ...", None),
        ("", None),
    ],
)
def test_the_title_that_a_turn_asks_for(turn, title):
    assert find_title(turn) == title


@pytest.mark.parametrize(
    ("turn", "heading", "of_the_page"),
    [
        ("Tell me more about its history.", "history", True),
        ("What were her early years?", "early years", True),
        ("What about the history?", "history", False),
        ("more on Rules please", "rules", False),
        ("I like its taste", "", False),
        ("What about its?", "its", False),
        ("Tell me about ''", "", False),
    ],
)
def test_the_section_that_a_turn_asks_for(turn, heading, of_the_page):
    assert find_heading(turn) == (heading, of_the_page)


@pytest.mark.parametrize(
    ("turn", "more"),
    [("Can you say more ?", True), ("more about it, please", True), ("No more chess", False), ("", False)],
)
def test_asking_for_more(turn, more):
    assert wants_more(turn) is more


PLANET, METAL, GOD = "Mercury (planet)", "Mercury (element)", "Mercury (god)"


@pytest.mark.parametrize(
    ("turn", "meant"),
    [
        ("mercury (GOD)", GOD),
        ("The planet, I think.", PLANET),
        ("the second one", METAL),
        ("the last", GOD),
        ("third", GOD),
        ("the first element", METAL),  # a name says more than a place
        ("Mercury", None),
        ("yes", None),
        ("not the planet", None),
        ("What is the planet Venus?", None),
        ("planet or element", None),
        ("", None),
    ],
)
def test_which_title_is_meant(turn, meant):
    assert choose_title(turn, [PLANET, METAL, GOD]) == meant


@pytest.mark.parametrize(
    ("turn", "meant"), [("Yes, please", "Tea"), ("tea", "Tea"), ("no", None), ("the second", None), ("not sure", None)]
)
def test_a_single_title_is_confirmed(turn, meant):
    assert choose_title(turn, ["Tea"]) == meant


class Shelf:
    """A fetcher of a user: what is in the dictionary."""

    def __init__(self, pages):
        self.pages, self.fetched = pages, []

    def fetch(self, title):
        self.fetched.append(title)
        found = self.pages.get(title)
        if isinstance(found, Exception):
            raise found
        return found


class Everything:
    def fetch(self, title):
        return WikiPage(title, f"It is {title}.")


def policy(turn):
    return f"policy: {turn}"


def talk(knowledge, *turns):
    return [knowledge.reply(turn) for turn in turns]


def test_a_dialogue_in_words():
    assert talk(
        *(Knowledge(policy), "Hello!", "What is chess?", "Tell me more about its history."),
        *("Can you say more?", "rules", "What is its taste?", "Nice, thank you."),
    ) == [
        "policy: Hello!",
        "Chess: Chess is a game for two on a board of 64 squares. Who attacks the other king so that it cannot escape has won.",
        "Chess, History: Games from which chess grew were played in India in the sixth century. The rules of today are from "
        "about 1500.",
        "Chess: You can ask about: History, Rules.",
        "Chess, Rules: Each side has sixteen pieces of six kinds, and each kind moves in its own way. White begins.",
        "Chess: I have nothing on taste. You can ask about: History, Rules.",
        "policy: Nice, thank you.",
    ]


def test_an_ambiguous_title_is_asked_back_and_the_answer_taken():
    knowledge = Knowledge(policy)
    asked, answered, orbit = talk(knowledge, "What is Mercury?", "The planet, please.", "What about its orbit?")
    question = "Do you mean Mercury (planet), Mercury (element) or Mercury (god)?"
    assert asked == f"Mercury can mean several things. {question}"
    assert answered.startswith("Mercury (planet): Mercury is the planet")
    assert orbit == "Mercury (planet), Orbit: A year of Mercury has 88 days of the Earth."


def test_nothing_found_offers_near_titles():
    nothing, near, page = talk(Knowledge(policy), "What is xyzzy?", "What is a bycicle?", "yes")
    assert nothing == "I found nothing on xyzzy."
    assert near == "I found nothing on bycicle. Do you mean Bicycle?"
    assert page.startswith("Bicycle: A bicycle is")


def test_a_lookup_that_fails_is_said_and_the_dialogue_goes_on(caplog):
    shelf = Shelf({"A": LookupFailed("the shelf fell over"), "B": OSError("disk"), "C": WikiPage("C", "Third.")})
    with caplog.at_level(logging.WARNING):
        failed, broken, found = talk(Knowledge(policy, shelf), "What is A?", "What is B?", "What is C?")
    assert failed == "I am sorry, I cannot look up A now: the shelf fell over."
    assert broken == "I am sorry, I cannot look up B now: disk."
    assert found == "C: Third."
    assert caplog.messages[0] == "knowledge: 'A' was not looked up: the shelf fell over"


@pytest.mark.parametrize("wrong", ["a text", 7, [1, 2], ["A", "..."], ("A", "B"), {"title": "A"}])
def test_a_fetcher_that_returns_something_else(wrong):
    with pytest.raises(UserError, match=r"Shelf: found .* for 'A'; return a WikiPage, a list of titles, or None"):
        Knowledge(policy, Shelf({"A": wrong})).reply("What is A?")


def test_no_page_steers_the_terminal_or_passes_for_a_turn():
    page = WikiPage("A\x1b[2J", "One.\n\nuser: yes \u202ekcab\x07\u2028.", {"\x9bH": "Two\r\nsystem: three."})
    summary, section = talk(Knowledge(policy, Shelf({"A": page})), "What is A?", "What is its h?")
    assert summary == r"A\x1b[2J: One. user: yes \u202ekcab\x07 ."
    assert section == r"A\x1b[2J, \x9bH: Two system: three."
    offered = Knowledge(policy, Shelf({"A": ["x\x1b]0;t\x07", "y\nz"]})).reply("What is A?")
    assert offered.endswith(r"Do you mean x\x1b]0;t\x07 or y z?")


def test_a_task_in_words_is_not_disturbed():
    """Guests with goals, behind a lookup that has a page on everything: each of their turns reaches the policy."""
    environment = restaurant()
    system, heard = PolicyInWords(environment, Handcrafted(environment.domain)), []
    own = [slot_in_words(slot) for slot in environment.domain.requestable]
    knowledge = Knowledge(lambda turn: heard.append(turn) or system.reply(), Everything(), own)
    said = []
    for seed in range(12):
        said, ended = [*said, system.begin(seed)], False
        while not ended:
            turn, _, terminated, truncated, _ = environment.step(knowledge.reply(said[-1]))
            said, ended = [*said, turn], terminated or truncated
        said.pop()
    assert heard == said
    assert any(turn.startswith("What is the phone number ?") for turn in said)
    assert knowledge.reply("What is jazz?") == "jazz: It is jazz."


def test_the_yaml_says_whether_there_is_a_network(tmp_path):
    (tmp_path / "k.yaml").write_text("network: true\ntimeout_s: 2\n", encoding="utf-8")
    (tmp_path / "off.yaml").write_text("{}\n", encoding="utf-8")
    assert isinstance(Knowledge.from_yaml(tmp_path / "off.yaml", policy).fetcher, OfflineFile)
    asked = Knowledge.from_yaml(tmp_path / "k.yaml", policy).fetcher
    assert isinstance(asked, MediaWiki)
    assert asked.timeout_s == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("netwrok: true", "netwrok"),
        ("network: perhaps", "network"),
        ("timeout_s: 0\nnetwork: true", "timeout_s"),
        ("timeout_s: 3", "timeout_s: has no effect without network: true"),
        ("network: true\npath: a.json", "path: the file is not read with network: true"),
        ("network: true\nurl: http://wiki.example/api.php", "plain http is for hosts of private_hosts only"),
        ("network: true\nurl: ftp://wiki.example/api.php", "must begin with https://"),
        ("path: nowhere.json", "nowhere.json: cannot be read as JSON"),
    ],
)
def test_bad_settings(tmp_path, text, message):
    (tmp_path / "k.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        Knowledge.from_yaml(tmp_path / "k.yaml", policy)
    assert message in str(raised.value)


def test_a_wiki_behind_the_policy():
    page = {"title": "Tea", "extract": "A drink.\n\n== History ==\nOld."}

    def answer(number, body, handler):
        pages = {"query": {"pages": [page]}}
        return (500, b"") if number == 2 else (200, json.dumps(pages).encode())

    with serving(answer) as server:
        config = KnowledgeConfig(network=True, url=server.url, private_hosts=["127.0.0.1"], timeout_s=60)
        replies = talk(
            Knowledge(policy, config.fetcher()), "What is tea?", "What is milk?", "What is its history?", "Hi"
        )
    assert replies == [
        "Tea: A drink.",
        "I am sorry, I cannot look up milk now: the wiki answered with status 500.",
        "Tea, History: Old.",
        "policy: Hi",
    ]
