"""Where the knowledge policy looks: the encyclopedia of the package, and a wiki."""

import json
import socket
import ssl
from urllib.parse import parse_qs, urlsplit

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import LookupFailed, OfflineFile, WikiPage, normal
from rlhf_dialog.task_oriented.policies.multi_domain.mediawiki import MediaWiki, is_public
from tests.parts.servers import serving

HERE = "127.0.0.1"


def answering(page, searched=()):
    """An honest wiki with this page (`formatversion` 2), and what its search finds."""

    def answer(number, body, handler):
        asked = parse_qs(urlsplit(handler.path).query)
        found = ["q", list(searched), [], []] if asked["action"] == ["opensearch"] else {"query": {"pages": [page]}}
        return 200, json.dumps(found).encode()

    return answer


def says(status, body):
    return lambda *_: (status, body)


def wiki(server, **options):
    return MediaWiki(server.url, private_hosts=[HERE], **{"timeout_s": 60, **options})


def test_a_page_with_its_sections():
    text = "Tea is a drink.\n\n\n== History ==\nOld.\n=== Ships ===\nFast.\n\n== See also ==\n\n\n==  Uses==\nIt is drunk. 1 == 1"
    with serving(answering({"pageid": 1, "ns": 0, "title": "Tea", "extract": text})) as server:
        page = wiki(server, user_agent="test (me@example.org)").fetch("tea")
        (headers,) = server.headers
    assert (page.title, page.summary.strip()) == ("Tea", "Tea is a drink.")
    assert {key: text.split() for key, text in page.sections.items()} == {
        "History": ["Old.", "Fast."],
        "Uses": ["It", "is", "drunk.", "1", "==", "1"],
    }
    assert headers["User-Agent"] == "test (me@example.org)"
    assert headers["Host"] == urlsplit(server.url).netloc


def test_what_is_asked_of_the_wiki():
    with serving(answering({"title": "A", "missing": True}, ["Aa", "Ab"])) as server:
        found = wiki(server)
        assert found.fetch("A|B\x1fC#d&titles=E") is None
        assert found.suggest_titles("A") == ["Aa", "Ab"]
    first, second = [{key: v for key, (v,) in parse_qs(urlsplit(path).query).items()} for path in server.paths]
    assert first["titles"] == "A B C d&titles=E"
    assert (first["action"], first["format"], first["formatversion"]) == ("query", "json", "2")
    assert (second["action"], second["search"], second["limit"]) == ("opensearch", "A", "3")


def test_a_disambiguation_page_gives_its_links_those_with_the_title_first():
    links = [{"ns": 0, "title": title} for title in ("Freddie", "Mercury (element)", "Roman god", "Mercury (planet)")]
    page = {"title": "Mercury", "pageprops": {"disambiguation": ""}, "extract": "Mercury may be:", "links": links}
    with serving(answering(page)) as server:
        assert wiki(server).fetch("mercury") == ["Mercury (element)", "Mercury (planet)", "Freddie", "Roman god"]


@pytest.mark.parametrize("answer", [{"batchcomplete": True}, {"query": {"pages": [{"title": "<", "invalid": True}]}}])
def test_no_page(answer):
    with serving(says(200, json.dumps(answer).encode())) as server:
        assert wiki(server).fetch("x") is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>Not found</html>",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b'{"query": 1}',
        b'{"query": {"pages": {"1": {}}}}',
        b'{"query": {"pages": [[]]}}',
        b'{"query": {"pages": [{"title": "T"}]}}',
        b'{"query": {"pages": [{"title": "T", "extract": {"*": "old format"}}]}}',
        b'{"query": {"pages": [{"title": 1, "extract": "text"}]}}',
        b'{"query": {"pages": [{"title": "T", "pageprops": {"disambiguation": ""}, "links": [1]}]}}',
        b'{"query": {"pages": [{"title": "T", "pageprops": {"disambiguation": ""}, "links": null}]}}',
    ],
)
def test_an_answer_that_is_not_that_of_the_api(answer):
    with serving(says(200, answer)) as server:
        with pytest.raises(LookupFailed, match="the wiki gave an answer that cannot be read"):
            wiki(server).fetch("x")
        with pytest.raises(LookupFailed, match="the wiki gave an answer that cannot be read"):
            wiki(server).suggest_titles("x")


def test_a_redirect_is_not_followed():
    def elsewhere(number, body, handler):
        handler.send_response(301)
        handler.send_header("Location", "file:///etc/passwd")
        handler.end_headers()

    with serving(elsewhere) as server:
        with pytest.raises(LookupFailed, match="status 301"):
            wiki(server).fetch("x")
        assert len(server.requests) == 1


def test_a_wiki_that_never_answers():
    with (
        serving(lambda *_: server.closing.wait() and None) as server,
        pytest.raises(LookupFailed, match=r"gave no answer within 0\.05 seconds"),
    ):
        wiki(server, timeout_s=0.05).fetch("x")


def test_a_wiki_that_is_not_there():
    with socket.socket() as unused:
        unused.bind((HERE, 0))
        address = f"http://{HERE}:{unused.getsockname()[1]}/api.php"
        with pytest.raises(LookupFailed, match="the wiki cannot be reached"):
            MediaWiki(address, private_hosts=[HERE]).fetch("x")
    with pytest.raises(LookupFailed, match="the wiki cannot be reached"):
        MediaWiki(f"https://{'a' * 64}.example/api.php").fetch("x")  # a label of a name has 63 characters at most


@pytest.mark.parametrize("host", [HERE, "localhost", "2130706433", "[::1]"])
def test_an_address_of_this_machine_is_refused_before_a_connection(host, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("a connection"))
    with pytest.raises(LookupFailed, match="has an address that is not public; private_hosts can allow it"):
        MediaWiki(f"https://{host}/api.php").fetch("x")


def test_https_checks_the_name_of_the_host(monkeypatch):
    """What TLS is asked to prove, with a TLS that adds nothing."""
    names = []

    class Plain:
        def wrap_socket(self, sock, server_hostname):
            names.append(server_hostname)
            return sock

    monkeypatch.setattr(ssl, "create_default_context", Plain)
    with serving(answering({"title": "Tea", "extract": "A drink."})) as server:
        address = server.url.replace("http://127.0.0.1", "https://LocalHost")
        assert MediaWiki(address, timeout_s=60, private_hosts=["LocalHost"]).fetch("tea") == WikiPage("Tea", "A drink.")
    assert names == ["localhost"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("8.8.8.8", True), ("2001:4860:4860::8888", True), (HERE, False), ("10.1.2.3", False)),
        *(("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False)),
        *(("0.0.0.0", False), ("224.0.0.1", False), ("::1", False), ("fe80::1%eth0", False)),
        *(("fd00::1", False), ("::ffff:127.0.0.1", False), ("::ffff:8.8.8.8", True), ("2002:7f00:1::", False)),
        ("64:ff9b::7f00:1", False),
    ],
)
def test_which_addresses_are_public(address, public):
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        "http://en.wikipedia.org/w/api.php",
        "file:///etc/passwd",
        "ftp://wiki.example/api.php",
        "en.wikipedia.org/w/api.php",
        "https://",
        "https://user:secret@wiki.example/api.php",
        "https://wiki.example/api.php?action=logout",
        "https://wiki.example/api.php#top",
        "https://wiki.example:99999/api.php",
        "https://wiki.example/a b",
        "https://wiki.example/\r\nX: y",
        "https://[::1/api.php",
    ],
)
def test_an_address_that_cannot_be_used(url):
    with pytest.raises(UserError, match="url: "):
        MediaWiki(url)


MOON = {"title": "The Moon", "summary": "A satellite.", "sections": {"Orbit": "27 days."}}
SEA = {"title": "Moon (sea)", "summary": "An invented sea."}


def offline(tmp_path, data):
    (tmp_path / "pages.json").write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return OfflineFile(tmp_path / "pages.json")


def test_the_file_of_the_package():
    found = OfflineFile()
    assert len([page for page in found.pages.values() if isinstance(page, WikiPage)]) == 12
    assert found.fetch("mercury") == ["Mercury (planet)", "Mercury (element)", "Mercury (god)"]
    assert found.fetch("the harbour of lindmouth").sections["Lighthouse"].startswith("The lighthouse has 99 steps.")
    assert found.suggest_titles("Bycicle") == ["Bicycle"]


def test_case_punctuation_and_articles_do_not_matter(tmp_path):
    found = offline(tmp_path, {"pages": [MOON, SEA]})
    assert (
        found.fetch("moon!") == found.fetch("THE  MOON") == WikiPage("The Moon", "A satellite.", {"Orbit": "27 days."})
    )
    assert found.fetch("Moon, sea").sections == {}
    assert found.fetch("Sun") is None
    assert found.suggest_titles("mo on")[0] == "The Moon"
    assert (normal("A"), normal("The"), normal("Ölfarbe_2")) == ("a", "the", "ölfarbe 2")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "pages.json: cannot be read as JSON"),
        ([], 'expected {"pages": [...], "ambiguous": {...}} with at least one page'),
        ({"pages": []}, "with at least one page"),
        ({"pages": [MOON], "other": 1}, "with at least one page"),
        ({"pages": [MOON, "Sun"]}, "page 2: expected the texts title and summary"),
        ({"pages": [{"title": "Sun"}]}, "page 1: expected the texts title and summary"),
        ({"pages": [{"title": "...", "summary": "Dots."}]}, "page 1: expected the texts"),
        ({"pages": [MOON | {"sections": ["Orbit"]}]}, "page 1: expected the texts"),
        ({"pages": [MOON | {"sections": {"Orbit": 27}}]}, "page 1: expected the texts"),
        ({"pages": [MOON | {"history": "Old."}]}, "page 1: expected the texts"),
        ({"pages": [MOON, {"title": "moon", "summary": "Again."}]}, "page 2: the title 'moon' is there twice"),
        ({"pages": [MOON, SEA], "ambiguous": ["Moon"]}, "ambiguous: 'ambiguous': expected a list of two titles"),
        ({"pages": [MOON, SEA], "ambiguous": {"M": ["The Moon"]}}, "ambiguous: 'M': expected a list of two titles"),
        ({"pages": [MOON, SEA], "ambiguous": {"M": ["Moon", "Sun"]}}, "ambiguous: 'M': 'Sun' must be a page"),
        ({"pages": [MOON, SEA], "ambiguous": {"Moon": ["Moon", "Moon (sea)"]}}, "and 'Moon' must not"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, data, message):
    with pytest.raises(UserError) as raised:
        offline(tmp_path, data)
    assert str(tmp_path / "pages.json") in str(raised.value)
    assert message in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: cannot be read as JSON"):
        OfflineFile(tmp_path / "none.json")
