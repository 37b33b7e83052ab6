"""What the buttons of a page say, without Gradio; tests/feedback/page/test_page.py calls them as Gradio does."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page import actions
from rlhf_dialog.feedback.page.batched_generation import Answering
from rlhf_dialog.feedback.page.chat_session import ChatSession
from rlhf_dialog.feedback.store.limits import PageLimits


@pytest.fixture
def talk(bot):
    store = bot.store()
    with Answering(bot, seed=0) as answering:
        yield ChatSession(store, answering, "somebody", "page")
    store.close()


def test_what_is_saved_is_said(talk):
    list(talk.say("Hello"))
    assert actions.thumb(talk, [1, 0], "Too long") == "Saved: you do not like this answer (too long)."
    assert actions.thumb(talk, 1, None) == "Saved: your thumb is taken back."
    assert actions.score(talk, 2) == "Saved: 2 of 5 for the last answer."
    assert actions.score_dialogue(talk, 3) == "Saved: 3 of 5 for this dialogue."
    list(actions.again(talk))
    assert actions.choose(talk, 1) == "Saved: the second answer is better; the dialogue goes on with it."
    assert actions.draft(talk) == talk.last.text
    assert actions.edit(talk, "Better", PageLimits()) == "Saved: the dialogue goes on with your answer."
    assert talk.ratings()[talk.turns[1].id] == {"score": 2.0}


def test_what_cannot_be_done(talk):
    for act in (actions.draft, lambda talk: actions.choose(talk, 0), lambda talk: actions.score(talk, None)):
        with pytest.raises(UserError):
            act(talk)
    list(talk.say("Hello"))
    list(actions.again(talk))
    with pytest.raises(UserError, match="say first which"):
        actions.again(talk)
    with pytest.raises(UserError, match="shorten it to 3"):
        actions.edit(talk, "Better", PageLimits(message_chars=3))
