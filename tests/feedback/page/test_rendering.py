"""What a page shows of a dialogue."""

import html.parser

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page import rendering
from rlhf_dialog.feedback.page.rendering import escape_text, find_pair_to_compare, list_messages, thumb_label


def test_two_answers_are_compared_until_one_is_chosen(talk):
    list(talk.say("Hello"))
    assert find_pair_to_compare(talk) == []
    list(talk.again())
    first, second = talk.alternatives()
    assert [one.turn for one in list_messages(talk)] == [talk.turns[0], first, second]
    labelled = [one["content"] for one in rendering.gradio_messages(list_messages(talk), is_compared=True)]
    texts = ["Hello", "First:\n" + first.text, "Second:\n" + second.text]
    assert labelled == [escape_text(text) for text in texts]
    talk.choose(1)
    assert find_pair_to_compare(talk) == []
    assert [one.text for one in list_messages(talk)] == ["Hello", first.text]
    list(talk.again())
    third = talk.alternatives()[2]
    assert find_pair_to_compare(talk) == [first, third]  # not with the one that lost
    talk.choose(3)
    list(talk.say("And ?"))
    assert [one.text for one in list_messages(talk)] == ["Hello", third.text, "And ?", talk.last.text]
    assert [one.turn.id for one in list_messages(talk)][1] == third.id


def test_thumbs_and_better_answers_are_shown(talk):
    list(talk.say("Hello"))
    talk.thumb(False, "Off topic")
    talk.edit("Good morning !")
    list(talk.say("And ?"))
    talk.thumb(True)
    assert [(one.text, one.liked, one.reason) for one in list_messages(talk)] == [
        ("Hello", None, None), ("Good morning !", False, "Off topic"), ("And ?", None, None), (talk.last.text, True, None),
    ]  # fmt: skip
    assert [thumb_label(one) for one in list_messages(talk) if one.is_answer] == ["Off topic", "Like"]
    talk.thumb(False, "a reason from the terminal")
    assert thumb_label(list_messages(talk)[3]) == "Dislike"
    assert rendering.describe_versions(talk, list_messages(talk)) == "Version 0001 answers."


def test_an_answer_that_was_edited_is_compared_as_it_is_seen(talk):
    list(talk.say("Hello"))
    talk.edit("Better")
    list(talk.again())
    second = talk.last
    assert [one.text for one in list_messages(talk)] == ["Hello", "Better", second.text]
    talk.choose(1)
    assert find_pair_to_compare(talk) == []
    assert [one.text for one in list_messages(talk)] == ["Hello", "Better"]
    list(talk.again())
    assert [one.text for one in list_messages(talk)] == ["Hello", "Better", talk.last.text]
    talk.choose(3)
    assert [one.text for one in list_messages(talk)] == ["Hello", talk.alternatives()[2].text]


HOSTILE = '<script>x</script><img src=x> </b> <!-- --> <?php ?> &lt; &#60; &amp; <3 & a < b \x1b[2J \u202e "'


def test_texts_are_no_markup():
    """Python's parser of HTML reads what is shown: no tag, no entity, no comment."""
    found = []

    class Reader(html.parser.HTMLParser):
        def handle_data(self, data):
            found.append(data)

        def handle_starttag(self, tag, attributes):
            pytest.fail(tag)

        handle_endtag = handle_comment = handle_decl = handle_pi = pytest.fail

    reader = Reader()
    reader.feed(escape_text(HOSTILE))
    reader.close()
    seen = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert "".join(found).replace("\u2060", "") == seen
    assert "\u2060" not in escape_text("I <3 you & me; 1 < 2")


def test_lines_of_the_page_are_escaped():
    assert rendering.split_introduction("A waiter.") == ("A waiter.", [])
    assert rendering.split_introduction("Try: Tea? | ") == ("Try: Tea? | ", ["Tea?"])
    assert rendering.note_html("<b>\x1b") == '<p role="status">&lt;b&gt;\\x1b</p>'
    assert rendering.problem_html(UserError("wait <b>")) == '<p role="alert">Wait &lt;b&gt;.</p>'
    assert rendering.note_html("") == ""
    assert rendering.shorten("a\n b" * 20, 10) == "a ba ba b…"
