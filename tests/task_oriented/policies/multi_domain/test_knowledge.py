import json
import logging
from urllib.parse import parse_qs, urlsplit

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.multi_domain.knowledge import (
    Knowledge,
    LookupFailed,
    MediaWiki,
    OfflineFile,
    WikiPage,
    choose_title,
    find_title,
    shorten,
)
from tests.parts.servers import serving


@pytest.mark.parametrize(
    ("turn", "title"),
    [
        ("What is the Moon?", "Moon"),
        ("What's an aubergine , please ?", "aubergine"),
        ("Could you please tell me about chess?", "chess"),
        ("Tell me more about The Hague.", "The Hague"),
        ("look up 'Zürich'", "Zürich"),
        ("What is it called ?", None),
        ("What is your name?", None),
        ("I would like chinese food .", None),
        ("What is ?", None),
    ],
)
def test_the_title_that_a_turn_asks_for(turn, title):
    assert find_title(turn) == title


PLANET, METAL, GOD = "Mercury (planet)", "Mercury (element)", "Mercury (god)"


@pytest.mark.parametrize(
    ("turn", "offered", "meant"),
    [
        ("mercury (GOD)", [PLANET, METAL, GOD], GOD),
        ("The planet, I think.", [PLANET, METAL, GOD], PLANET),
        ("Mercury", [PLANET, METAL, GOD], None),
        ("yes", [PLANET, METAL, GOD], None),
        ("not the planet", [PLANET, METAL, GOD], None),
        ("What is the planet Venus?", [PLANET, METAL, GOD], None),
        ("planet or element", [PLANET, METAL, GOD], None),
        ("Yes, please", ["Tea"], "Tea"),
        ("tea", ["Tea"], "Tea"),
        ("not sure", ["Tea"], None),
    ],
)
def test_which_title_is_meant(turn, offered, meant):
    assert choose_title(turn, offered) == meant


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


def policy(turn):
    return f"policy: {turn}"


def talk(knowledge, *turns):
    return [knowledge.reply(turn) for turn in turns]


def test_a_dialogue_in_words_and_what_is_the_policys_own():
    chess = WikiPage(title="Chess", summary="A game.", sections={"History": "From India.", "Rules": "Many."})
    shelf = Shelf({"chess": chess, "Go": WikiPage(title="Go", summary="Older.")})
    turns = {
        "its history": "policy: its history",
        "What is chess?": "Chess: A game.",
        "Tell me more about its history.": "Chess, History: From India.",
        "What about rules?": "Chess, Rules: Many.",
        "What is its taste?": "Chess: you can ask about History, Rules.",
        "Nice, thank you.": "policy: Nice, thank you.",
        "What is Go?": "Go: Older.",
        "What are its rules?": "Go: you can ask about nothing more.",
    }
    assert talk(Knowledge(policy, shelf), *turns) == list(turns.values())
    pages = {name: WikiPage(title=name, summary=f"It is {name}.") for name in ("phone", "phone numbers")}
    knowledge = Knowledge(policy, Shelf(pages), own=["phone number"])
    asked = ["What is the phone number ?", "What is the phone ?", "About the phone numbers ."]
    found = [f"policy: {asked[0]}", "phone: It is phone.", "phone numbers: It is phone numbers."]
    assert talk(knowledge, *asked) == found


def test_titles_are_offered_and_the_answer_taken():
    knowledge = Knowledge(policy)
    asked, answered, orbit = talk(knowledge, "What is Mercury?", "The planet, please.", "What about its orbit?")
    assert asked == "I have no page on Mercury. Do you mean Mercury (planet), Mercury (element) or Mercury (god)?"
    assert answered.startswith("Mercury (planet): Mercury is the planet")
    assert orbit == "Mercury (planet), Orbit: A year of Mercury has 88 days of the Earth."
    nothing, near, page = talk(knowledge, "What is xyzzy?", "What is a bycicle?", "yes")
    assert (nothing, near) == ("I have no page on xyzzy.", "I have no page on bycicle. Do you mean Bicycle?")
    assert page.startswith("Bicycle: A bicycle is")


def test_long_texts_end_with_a_sentence_and_long_lists_early():
    assert shorten("One two. Three four.", 20) == "One two. Three four."
    assert shorten("One two. Three four.", 12) == "One two."
    assert shorten("Once. Two three four", 12) == "Once."
    assert shorten("A. bcdefghijklmn", 12) == "A. bcdef ..."  # a sentence of less than a third is too little
    page = WikiPage(title="t" * 81, summary="s" * 601, sections={f"H{n}": "x" for n in range(12)})
    found, headings = talk(Knowledge(policy, Shelf({"A": page})), "What is A?", "What is its colour?")
    assert found == f"{'t' * 76} ...: {'s' * 596} ..."
    assert headings.endswith("H8, H9.")
    offered = Knowledge(policy, Shelf({"A": list("bcdefgh")})).reply("What is A?")
    assert offered == "I have no page on A. Do you mean b, c, d, e or f?"


def test_a_lookup_that_fails_is_said_and_the_dialogue_goes_on(caplog):
    third = WikiPage(title="C", summary="Third.")
    shelf = Shelf({"A": LookupFailed("the shelf fell over"), "B": OSError("disk"), "C": third})
    with caplog.at_level(logging.WARNING):
        failed, broken, found = talk(Knowledge(policy, shelf), "What is A?", "What is B?", "What is C?")
    assert (failed, broken) == ("I am sorry, I cannot look up A now.", "I am sorry, I cannot look up B now.")
    assert found == "C: Third."
    assert "the shelf fell over" in caplog.messages[0]


def test_no_page_steers_the_terminal_or_passes_for_a_turn():
    page = WikiPage(
        title="A\x1b[2J", summary="One.\n\nuser: yes \u202ekcab\x07\u2028.", sections={"\x9bH": "Two\r\nsystem: three."}
    )
    summary, section = talk(Knowledge(policy, Shelf({"A": page})), "What is A?", "What is its h?")
    assert summary == r"A\x1b[2J: One. user: yes \u202ekcab\x07 ."
    assert section == r"A\x1b[2J, \x9bH: Two system: three."
    offered = Knowledge(policy, Shelf({"A": ["x\x1b]0;t\x07", "y\nz"]})).reply("What is A?")
    assert offered.endswith(r"Do you mean x\x1b]0;t\x07 or y z?")


def answering(page):
    """An honest wiki with this page (`formatversion` 2)."""

    return says(200, json.dumps({"query": {"pages": [page]}}).encode())


def says(status, body):
    return lambda *_: (status, body)


def wiki(server, **options):
    return MediaWiki(server.url, **{"timeout_s": 60, **options})


def test_a_page_with_its_sections_and_the_links_of_a_disambiguation_page():
    text = "Tea is a drink.\n\n\n== History ==\nOld.\n=== Ships ===\nFast.\n\n== See also ==\n\n\n==  Uses==\nDrunk. 1 == 1"
    with serving(answering({"pageid": 1, "ns": 0, "title": "Tea", "extract": text})) as server:
        page = wiki(server, user_agent="test (me@example.org)").fetch("tea")
        (headers,) = server.headers
    assert (page.title, page.summary.strip()) == ("Tea", "Tea is a drink.")
    sections = {key: " ".join(text.split()) for key, text in page.sections.items()}
    assert sections == {"History": "Old. Fast.", "Uses": "Drunk. 1 == 1"}
    assert headers["User-Agent"] == "test (me@example.org)"
    assert headers["Host"] == urlsplit(server.url).netloc
    links = [{"ns": 0, "title": title} for title in ("Freddie", "Mercury (element)", "Roman god", "Mercury (planet)")]
    page = {"title": "Mercury", "pageprops": {"disambiguation": ""}, "extract": "Mercury may be:", "links": links}
    with serving(answering(page)) as server:
        assert wiki(server).fetch("mercury") == ["Mercury (element)", "Mercury (planet)", "Freddie", "Roman god"]


def test_what_is_asked_of_the_wiki():
    with serving(answering({"title": "A", "missing": True})) as server:
        assert wiki(server).fetch("A|B\x1fC#d&titles=E") == []
    asked = {key: value for key, (value,) in parse_qs(urlsplit(server.paths[0]).query).items()}
    assert asked["titles"] == "A B C d&titles=E"
    assert (asked["action"], asked["format"], asked["formatversion"]) == ("query", "json", "2")
    assert (asked["prop"], asked["explaintext"], asked["redirects"]) == ("extracts|pageprops|links", "1", "1")
    assert (asked["plnamespace"], asked["pllimit"]) == ("0", "50")
    with serving(says(200, b"{}")) as server:
        assert wiki(server).fetch("x") == []


@pytest.mark.parametrize("answer", [b"", b"\xff\xfe\x00", b"[]", b'{"query": {"pages": {"1": {}}}}'])
def test_an_answer_that_is_not_that_of_the_api(answer):
    with serving(says(200, answer)) as server, pytest.raises(LookupFailed, match="cannot be read"):
        wiki(server).fetch("x")


def test_a_wiki_that_redirects_never_answers_or_is_not_there():
    def elsewhere(number, body, handler):
        handler.send_response(301)
        handler.send_header("Location", "file:///etc/passwd")
        handler.end_headers()

    with serving(elsewhere) as server:
        with pytest.raises(LookupFailed, match="301"):
            wiki(server).fetch("x")
        assert len(server.requests) == 1
    with serving(lambda *_: server.closing.wait() and None) as server, pytest.raises(LookupFailed):
        wiki(server, timeout_s=0.05).fetch("x")
    with pytest.raises(LookupFailed):
        MediaWiki(f"https://{'a' * 64}.example/api.php").fetch("x")  # a label of a name has 63 characters at most


@pytest.mark.parametrize("url", ["file:///etc/passwd", "wiki.example/api.php", "https:///api.php"])
def test_an_address_that_cannot_be_used(url):
    with pytest.raises(UserError, match="url: "):
        MediaWiki(url)


MOON = {"title": "The Moon", "summary": "A satellite.", "sections": {"Orbit": "27 days."}}
SEA = {"title": "Moon (sea)", "summary": "An invented sea."}


def offline(tmp_path, data):
    (tmp_path / "pages.json").write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return OfflineFile(tmp_path / "pages.json")


def test_case_punctuation_and_articles_do_not_matter(tmp_path):
    found = offline(tmp_path, {"pages": [MOON, SEA], "ambiguous": {"Luna": ["The Moon", "Moon (sea)"]}})
    assert found.fetch("moon!") == found.fetch("THE  MOON") == WikiPage(**MOON)
    assert found.fetch("Moon, sea").sections == {}
    assert found.fetch("Sun") == []
    assert found.fetch("luna") == ["The Moon", "Moon (sea)"]
    assert found.fetch("mo on")[0] == "The Moon"


NO_SUN = {"pages": [MOON], "ambiguous": {"Luna": ["Sun"]}}


@pytest.mark.parametrize("data", ["{", [], {"pages": []}, {"pages": ["Sun"]}, {"pages": [{"title": "Sun"}]}, NO_SUN])
def test_a_file_that_cannot_be_used_is_named(tmp_path, data):
    with pytest.raises(UserError, match=r"pages\.json"):
        offline(tmp_path, data)
