"""Which dialogues pages have open, and which of them make room for others."""

import threading

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions import open_sessions
from rlhf_dialog.feedback.sessions.open_sessions import OpenSessions
from rlhf_dialog.feedback.store.settings import PageKeys


@pytest.fixture
def talks(store, answering):
    return OpenSessions(store, answering, PageKeys(page_person_open_dialogues=2, page_open_dialogues=3))


def said(talks, person, page, dialogue=""):
    with talks.talk(person, page, dialogue) as talk:
        list(talk.say("Hello"))
        return talk.dialogue


def test_one_event_at_a_time(talks, monkeypatch):
    monkeypatch.setattr(open_sessions, "PATIENCE", 0.01)
    with talks.talk("ann", "1", ""):
        with pytest.raises(UserError, match="not finished"), talks.talk("ann", "1", ""):
            pass
        with talks.talk("ann", "2", ""):
            pass
    with talks.talk("ann", "1", ""):
        pass


def test_a_rating_just_before_is_waited_for(talks, monkeypatch):
    """A browser sends a reason twice, and people click fast: neither may be refused."""
    monkeypatch.setattr(open_sessions, "PATIENCE", 1000.0)
    found, waiting = [], threading.Thread(target=lambda: found.append(said(talks, "ann", "1", first.dialogue)))
    with talks.talk("ann", "1", "") as first:
        list(first.say("Hello"))
        waiting.start()
    waiting.join()
    assert found == [first.dialogue]


def test_those_that_rest_longest_leave_and_come_back(talks):
    first = said(talks, "ann", "1")
    said(talks, "ann", "2")
    said(talks, "ann", "3")
    assert len(talks) == 2
    said(talks, "ben", "1")
    said(talks, "cy", "1")
    assert len(talks) == 3
    assert said(talks, "ann", "1", first) == first
    assert len(talks._store.turns(first)) == 4


def test_one_that_is_being_answered_stays(talks):
    with talks.talk("ann", "1", "") as talk:
        for page in "23456":
            said(talks, "ann", page)
        list(talk.say("Hello"))
        dialogue = talk.dialogue
    with talks.talk("ann", "1", dialogue) as again:
        assert again is talk
    with talks.talk("ann", "1", "") as new, talks.talk("ann", "2", ""), talks.talk("ann", "3", ""):
        assert new is not talk  # the page shows another dialogue
        assert len(talks) == 3  # nor does the newest make room for itself


def test_closing(talks):
    said(talks, "ann", "1")
    said(talks, "ann", "2")
    said(talks, "ben", "2")
    talks.close(page="1")
    assert len(talks) == 2
    talks.close("ann")
    assert len(talks) == 1
    talks.close("ben", "3")
    talks.close("ben", "2")
    assert len(talks) == 0
    assert talks._answering._served._holders.total() == 0
