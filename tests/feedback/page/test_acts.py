"""What the buttons of a page say, without Gradio; tests/feedback/page/test_page.py calls them as Gradio does."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page import acts as acts
from rlhf_dialog.feedback.page.answering import Answering
from rlhf_dialog.feedback.page.talk import Talk
from rlhf_dialog.feedback.store.limits import Limits


@pytest.fixture
def talk(bot):
    store = bot.store()
    with Answering(bot, seed=0) as answering:
        yield Talk(store, answering, "somebody", "page")
    store.close()


def test_what_is_saved_is_said(talk):
    list(talk.say("Hello"))
    assert acts.thumb(talk, [1, 0], "Too long") == "Saved: you do not like this answer (too long)."
    assert acts.thumb(talk, 1, None) == "Saved: your thumb is taken back."
    assert acts.score(talk, 2) == "Saved: 2 of 5 for the last answer."
    assert acts.score_dialogue(talk, 3) == "Saved: 3 of 5 for this dialogue."
    list(acts.again(talk))
    assert acts.choose(talk, 1) == "Saved: the second answer is better; the dialogue goes on with it."
    assert acts.draft(talk) == talk.last.text
    assert acts.edit(talk, "Better", Limits()) == "Saved: the dialogue goes on with your answer."
    assert talk.ratings()[talk.turns[1].id] == {"score": 2.0}


def test_what_cannot_be_done(talk):
    for act in (acts.draft, lambda talk: acts.choose(talk, 0), lambda talk: acts.score(talk, None)):
        with pytest.raises(UserError):
            act(talk)
    list(talk.say("Hello"))
    list(acts.again(talk))
    with pytest.raises(UserError, match="say first which"):
        acts.again(talk)
    with pytest.raises(UserError, match="shorten it to 3"):
        acts.edit(talk, "Better", Limits(message_chars=3))
