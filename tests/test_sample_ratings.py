"""The made-up ratings: what they are, and that they are nobody's."""

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest

from rlhf_dialog.data.synthetic.pairs import attends
from rlhf_dialog.feedback.commands.bot import counts
from rlhf_dialog.feedback.store.examples import heldout_set, read_examples, training_set
from rlhf_dialog.feedback.store.imports import import_file
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import SAMPLES, Rating, Store

RATINGS = Path(__file__).parents[1] / "examples" / "ratings.jsonl"


@pytest.fixture
def store(tmp_path):
    opened = Store.create(tmp_path / "feedback.sqlite")
    import_file(opened, RATINGS)
    yield opened
    opened.close()


def test_they_are_enough_for_a_night_and_count_as_nobody(store):
    examples, settings = read_examples(store), BotSettings()
    training = training_set(examples, settings, (), "0")
    assert (len(heldout_set(examples, settings)), training.people, training.concerned) == (40, [], [SAMPLES])
    assert training.left_out == {}
    assert "samples: 200 of these ratings were made up" in "\n".join(counts(examples, 0))


def test_the_share_of_a_person_is_that_among_people(store):
    """Two people of ten and two ratings, a cap of one half: each weighs two, whatever the samples are."""
    for person, number in (("ann", 10), ("bob", 2)):
        for each in range(number):
            dialogue = store.begin(person, "page", f"{person} {each}".encode().hex().ljust(31, "0") + "1")
            store.add_turn(dialogue, 0, "user", f"Question {each} of {person} ?")
            turn = store.add_turn(dialogue, 1, "agent", "Answer .")
            store.add_feedback(dialogue, person, Rating("thumb", turn=turn, value=1))
    examples = read_examples(store)
    own = [one for one in examples.all if not one.heldout and one.person != SAMPLES]
    of_bob = sum(one.person == store.hash_person("bob") for one in own)
    training = training_set(examples, BotSettings(person_cap=0.5), (), "0")
    weight = Counter()
    for one in training.all:
        weight[one.person] += training.weights[one.event]
    assert of_bob
    assert weight == pytest.approx({store.hash_person("ann"): of_bob, store.hash_person("bob"): of_bob, SAMPLES: 160})


@pytest.mark.slow
def test_the_file_is_what_the_program_writes_and_only_liked_answers_attend():
    rows = [json.loads(line) for line in RATINGS.read_text(encoding="utf-8").splitlines()]
    assert rows == runpy.run_path(str(RATINGS.with_name("write_ratings.py")))["rows"]()
    assert len(rows) == 200
    for row in rows:
        *_, last, answer = (turn["text"] for turn in row["turns"])
        assert attends(last, answer) == (row["feedback"][0]["value"] == 1)
