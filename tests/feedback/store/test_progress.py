"""How many ratings a bot needs before it can learn, counted by hand."""

import pytest

from rlhf_dialog.feedback.store.progress import describe_progress, needed_ratings, short_count
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import Rating, Store, is_heldout

HELD_OUT = [name for name in (f"{number:032x}" for number in range(400)) if is_heldout(name)]


@pytest.fixture
def store(tmp_path):
    opened = Store.create(tmp_path / "feedback.sqlite")
    yield opened
    opened.close()


def rate(store, dialogue):
    store.begin("ann", "page", dialogue)
    store.add_turn(dialogue, 0, "user", f"Question {dialogue} ?")
    turn = store.add_turn(dialogue, 1, "agent", "Answer .")
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=turn, value=1))


def test_a_fifth_is_held_out_so_thirty_take_about_150_ratings():
    assert needed_ratings(BotSettings()) == 150
    assert describe_progress(12, 3, BotSettings()).startswith("12 of about 150 ratings: one dialogue of 5 is held out")


def test_the_count_ends_when_there_are_enough(store):
    settings = BotSettings(min_heldout=2)
    assert short_count(store, settings) == "0 of about 10 ratings before it can learn"
    for dialogue in ("f" * 32, HELD_OUT[0]):
        rate(store, dialogue)
    assert short_count(store, settings) == "2 of about 10 ratings before it can learn"
    rate(store, HELD_OUT[1])
    assert short_count(store, settings) == ""
