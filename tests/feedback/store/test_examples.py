"""From stored feedback to examples: labels, prompts, filters, the cap on a person, what is held out."""

import contextlib
import sqlite3
import tracemalloc
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import (
    Examples,
    RatedAnswer,
    cap_weights,
    heldout_set,
    max_share,
    newest_prompts,
    read_examples,
    training_set,
)
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import SAMPLES, Rating, Store, insert_event, insert_turn
from tests.parts.bots import exchange as talk

COUNTS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.integers(1, 200), min_size=1, max_size=12)
CAPS = st.sampled_from([0.05, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.9, 1.0])


def answer(event, person="p", liked=True, response="Two streets .", heldout=False, prompt=("Is it far ?",)):
    return RatedAnswer(prompt, response, liked, "thumb", person, f"d{event}", event, heldout=heldout)


def trained(*answers, consumed=(), **keys):
    examples = Examples(list(answers), [])
    return training_set(examples, BotSettings(**{"person_cap": 1.0, **keys}), consumed, "0")


def events(found):
    return [one.event for one in found.all]


@pytest.mark.parametrize(("kind", "value", "liked"), [("thumb", -1, False), ("score", 4, True), ("score", 2, False)])
def test_thumbs_and_scores_label_an_answer(store, kind, value, liked):
    dialogue, (turn,) = talk(store, token_ids=[3, 1, 4])
    event = store.add_feedback(dialogue, "p", Rating(kind, turn=turn, value=value))
    found = read_examples(store)
    (heldout,) = [one.heldout for one in store.dialogues()]
    person = store.hash_person("p")
    wanted = RatedAnswer(("Is it far ?",), "Two streets .", liked, kind, person, dialogue, event, (3, 1, 4), heldout)
    assert (found.answers, found.pairs, found.left_out) == ([wanted], [], {})


def test_edits_and_choices_are_pairs(store):
    dialogue, (first, second) = talk(store, answers=("Yes .", "No ."), token_ids=[7])
    edit = store.add_feedback(dialogue, "p", Rating("edit", turn=first, text="Two streets ."))
    store.add_feedback(dialogue, "q", Rating("edit", turn=first, text="Yes . "))
    choice = store.add_feedback(dialogue, "p", Rating("choice", turn=second, other=first))
    found = read_examples(store)
    shown = [(one.chosen, one.rejected, one.kind, one.event, one.chosen_ids, one.rejected_ids) for one in found.pairs]
    assert shown == [
        ("Two streets .", "Yes .", "edit", edit, None, (7,)),
        ("No .", "Yes .", "choice", choice, (7,), (7,)),
    ]
    assert found.left_out == {"edits that change nothing": 1}


def test_what_labels_nothing_what_is_newer_and_what_was_there_at_the_snapshot(store):
    dialogue, (turn,) = talk(store)
    first = store.add_feedback(dialogue, "p", Rating("thumb", turn=turn, value=1))
    store.add_feedback(dialogue, "p", Rating("score", turn=turn, value=1))
    store.add_feedback(dialogue, "q", Rating("score", turn=turn, value=3))
    store.add_feedback(dialogue, "p", Rating("dialogue_score", value=5))
    alone = store.begin("p", "import:x")
    to_nothing = store.add_turn(alone, 0, "agent", "Two streets .")
    store.add_feedback(alone, "p", Rating("thumb", turn=to_nothing, value=1))
    found = read_examples(store)
    assert [(one.kind, one.liked) for one in found.answers] == [("score", False)]
    older = "older judgements of the same answer"
    reasons = [older, "scores of 3, which say neither", "scores of a whole dialogue", "answers to nothing"]
    assert found.left_out == dict.fromkeys(reasons, 1)
    assert [one.liked for one in read_examples(store, first).answers] == [True]


@pytest.mark.parametrize(("choose", "said"), [(None, "C"), (0, "A"), (2, "C")])
def test_a_prompt_goes_on_with_the_chosen_answer_or_the_newest(store, choose, said):
    dialogue, turns = talk(store, answers=("A", "B", "C"))
    if choose is not None:
        store.add_feedback(dialogue, "p", Rating("choice", turn=turns[choose], other=turns[1]))
    store.add_turn(dialogue, 2, "user", "And then ?")
    last = store.add_turn(dialogue, 3, "agent", "Left .")
    store.add_feedback(dialogue, "p", Rating("thumb", turn=last, value=1))
    assert read_examples(store).answers[0].prompt_turns == ("Is it far ?", said, "And then ?")


def test_a_prompt_is_what_was_said_when_the_answer_was_given(store):
    """An edit goes on as the answer; what is written, chosen or edited later changes no prompt."""
    dialogue, (first, second) = talk(store, answers=("A", "B"))
    store.add_feedback(dialogue, "p", Rating("choice", turn=first, other=second))
    third = store.add_turn(dialogue, 1, "agent", "C")
    store.add_turn(dialogue, 2, "user", "And then ?")
    after_c = store.add_turn(dialogue, 3, "agent", "Left .")
    store.add_feedback(dialogue, "p", Rating("edit", turn=third, text="D"))
    after_d = store.add_turn(dialogue, 3, "agent", "Right .")
    store.add_feedback(dialogue, "p", Rating("withdrawn", turn=third, text="edit"))
    store.add_feedback(dialogue, "p", Rating("choice", turn=second, other=first))
    for turn in (after_c, after_d):
        store.add_feedback(dialogue, "p", Rating("thumb", turn=turn, value=1))
    said = [one.prompt_turns for one in read_examples(store).answers]
    assert said == [("Is it far ?", "C", "And then ?"), ("Is it far ?", "D", "And then ?")]


@pytest.mark.parametrize(
    ("back", "said"),
    [
        (("p", "edit", 0, None), "B"),  # the choice is left
        (("p", "choice", 1, None), "A2"),
        (("p", "choice", 1, 0), "A2"),
        (("p", "choice", 1, 2), "B"),  # another choice than the one that was made
        (("p", "choice", 0, None), "B"),  # a choice of another answer
        (("q", "choice", 1, None), "B"),  # another person's
        (("p", "thumb", 1, None), "B"),
    ],
)
def test_what_was_taken_back_before_an_answer_is_not_in_its_prompt(store, back, said):
    person, kind, turn, other = back
    dialogue, turns = talk(store, answers=("A", "B", "C"))
    store.add_feedback(dialogue, "p", Rating("edit", turn=turns[0], text="A2"))
    store.add_feedback(dialogue, "p", Rating("choice", turn=turns[1], other=turns[0]))
    store.add_feedback(
        dialogue, person, Rating("withdrawn", turns[turn], text=kind, other=None if other is None else turns[other])
    )
    store.add_turn(dialogue, 2, "user", "And then ?")
    last = store.add_turn(dialogue, 3, "agent", "Left .")
    store.add_feedback(dialogue, "p", Rating("thumb", turn=last, value=1))
    assert read_examples(store).answers[0].prompt_turns == ("Is it far ?", said, "And then ?")


def test_an_edit_that_was_taken_back_can_be_made_again(store):
    dialogue, (turn,) = talk(store, answers=("A",))
    edit, back = Rating("edit", turn=turn, text="B"), Rating("withdrawn", turn=turn, text="edit")
    for rating in (edit, back, edit):
        store.add_feedback(dialogue, "p", rating)
    store.add_turn(dialogue, 2, "user", "And then ?")
    store.add_feedback(dialogue, "p", Rating("thumb", turn=store.add_turn(dialogue, 3, "agent", "Left ."), value=1))
    assert read_examples(store).answers[0].prompt_turns == ("Is it far ?", "B", "And then ?")


def test_stopped_answers_are_left_out_and_counted_and_stay_in_prompts(store):
    dialogue, (turn,) = talk(store)
    stopped = store.add_turn(dialogue, 1, "agent", "Two", is_stopped=True)
    ratings = [Rating("thumb", stopped, 1), Rating("edit", stopped, text="Two streets down .")]
    for rating in (*ratings, Rating("choice", turn, other=stopped), Rating("thumb", turn, 1)):
        store.add_feedback(dialogue, "p", rating)
    store.add_turn(dialogue, 2, "user", "And then ?")
    last = store.add_turn(dialogue, 3, "agent", "Left .")
    event = store.add_feedback(dialogue, "q", Rating("thumb", last, 1))
    found = read_examples(store)
    assert found.left_out == {"ratings of answers that were stopped before their end": 3}
    assert [one.response for one in found.all] == ["Two streets .", "Left ."]
    edited = ("Is it far ?", "Two streets .", "And then ?")  # the choice is newest
    assert [one.prompt_turns for one in found.all if one.event == event] == [edited]
    assert [one.turns for one in newest_prompts(store, 9, 4)] == [edited, ("Is it far ?",)]
    talk(store, asked="Where ?")
    store.add_turn(store.begin("p", "api"), 0, "agent", "Le", is_stopped=True)
    assert [one.turns for one in newest_prompts(store, 1, 4)] == [("Where ?",)]


def branch(store, continued):
    """Two branches of one dialogue: the second copies two turns and asks something else; both are rated at their ends."""
    first, _ = talk(store, answers=("A",))
    copied = store.begin("p", "api", heldout=next(one.heldout for one in store.dialogues()))
    store.add_turn(copied, 0, "user", "Is it far ?", is_copy=True)
    store.add_turn(copied, 1, "agent", "A", is_copy=True)
    branches = {first: ["B ?", "C"], copied: ["D ?", "E"]}
    for dialogue in (copied, first):
        for position, text in enumerate(branches[dialogue], 2):
            last = store.add_turn(dialogue, position, ("user", "agent")[position % 2], text)
        store.add_feedback(dialogue, "p", Rating("thumb", last, 1))
    dialogue = first if continued == "first" else copied
    store.add_turn(dialogue, 4, "user", "F ?")
    store.add_feedback(dialogue, "p", Rating("thumb", store.add_turn(dialogue, 5, "agent", "G"), 1))
    return [one.heldout for one in store.dialogues()]


@pytest.mark.parametrize("continued", ["first", "copied"])
def test_the_prompts_of_two_branches_are_those_that_were_seen(store, continued):
    sides = branch(store, continued)
    begun = {"first": ("B ?", "C"), "copied": ("D ?", "E")}[continued]
    seen = [("D ?", True, "E"), ("B ?", False, "C"), ((*begun, "F ?"), continued == "copied", "G")]
    found = read_examples(store)
    shown = [("Is it far ?", "A", *(after if isinstance(after, tuple) else (after,))) for after, _, _ in seen]
    assert [one.prompt_turns for one in found.all] == shown
    assert [(one.after_copies, one.response) for one in found.all] == [one[1:] for one in seen]
    assert found.num_after_copies == sum(one[1] for one in seen)
    assert len(set(sides)) == 1
    assert [one.heldout for one in found.all] == [sides[0]] * 3
    prompts = [one.turns for one in newest_prompts(store, 9, 9)]
    assert prompts[-1] == ("Is it far ?",)  # once: that of the copied turn is no prompt of the bot
    assert len(prompts) == 4
    alone = store.begin("p", "api")
    store.add_turn(alone, 0, "user", "Never asked ?", is_copy=True)
    store.add_turn(alone, 1, "agent", "A", is_copy=True)
    assert [one.turns for one in newest_prompts(store, 9, 9)] == prompts


def test_examples_have_the_system_message_and_the_user_of_their_dialogue(store):
    for number, system in enumerate(["Be brief .", None, "Be kind ."]):
        dialogue = store.begin("unknown", "api", system=system, user=store.hash_outside(f"user {number}"))
        store.add_turn(dialogue, 0, "user", "Is it far ?")
        store.add_feedback(dialogue, "p", Rating("thumb", store.add_turn(dialogue, 1, "agent", "Yes ."), 1))
    found = read_examples(store)
    assert [one.system for one in found.all] == ["Be brief .", None, "Be kind ."]
    assert found.concerned == sorted([store.hash_person("p"), *(store.hash_outside(f"user {i}") for i in range(3))])
    assert [one.system for one in newest_prompts(store, 9, 9)] == ["Be kind .", None, "Be brief ."]
    kept = training_set(found, BotSettings(person_cap=1.0), (), "0")
    assert len(kept) == sum(not one.heldout for one in found.all)  # not the same answer thrice
    votes = [one._replace(heldout=False, person=one.event, liked=one.system is None) for one in found.answers]
    assert len(trained(*votes)) == 3  # who like it there and not here do not disagree


def test_what_is_new_is_not_shown_of_examples_without_it():
    """A night that was interrupted under an older program goes on: the text that identifies it is the same."""
    one = answer(7)
    shown = (
        "RatedAnswer(prompt_turns=('Is it far ?',), response='Two streets .', liked=True, kind='thumb', person='p', "
    )
    shown += "dialogue='d7', event=7, ids=None, heldout=False, owner=None)"
    assert repr((one, 1.0)) == f"({shown}, 1.0)"
    assert repr(one._replace(system="Be brief .")).endswith(", owner=None, system='Be brief .')")
    assert repr(one._replace(after_copies=True)).endswith(", owner=None, after_copies=True)")


def test_what_is_forgotten_while_it_is_read_is_read_whole(store, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.feedback.store.schema.BUSY_TIMEOUT", 0.01)
    dialogue, (turn,) = talk(store)
    store.add_feedback(dialogue, "p", Rating("thumb", turn=turn, value=1))
    each_row, other = store.each_row, Store(store.path)

    def meanwhile(statement, values=()):
        if "FROM turns" in statement:
            with contextlib.suppress(UserError):  # the bytes stay while somebody reads
                other.forget(other.hash_person("p"))
        return each_row(statement, values)

    monkeypatch.setattr(store, "each_row", meanwhile)
    assert len(read_examples(store)) == 1
    assert len(read_examples(store)) == 0
    other.close()


@pytest.mark.parametrize(
    "lost", ["turns WHERE text = 'Left .'", "turns WHERE text = 'And then ?'", "turns WHERE position = 0", "dialogues"]
)
def test_ratings_in_dialogues_that_lack_a_turn_are_counted(store, lost):
    kept, (turn,) = talk(store, asked="Where ?", answers=("Here .",))
    store.add_feedback(kept, "p", Rating("thumb", turn=turn, value=1))
    dialogue, answers = talk(store, answers=("A", "B"))
    store.add_feedback(dialogue, "p", Rating("choice", turn=answers[0], other=answers[1]))
    store.add_turn(dialogue, 2, "user", "And then ?")
    last = store.add_turn(dialogue, 3, "agent", "Left .")
    store.add_feedback(dialogue, "p", Rating("thumb", turn=last, value=1))
    where = f"WHERE id != '{kept}'" if lost == "dialogues" else f"AND dialogue != '{kept}'"
    with closing(sqlite3.connect(store.path)) as plain, plain:  # past the triggers
        for statement in ("DROP TRIGGER turns_keeps", "DROP TRIGGER dialogues_keeps", f"DELETE FROM {lost} {where}"):
            plain.execute(statement)
    count = 1 if lost.endswith(("'Left .'", "'And then ?'")) else 2
    found = read_examples(store)
    assert (found.left_out, len(found)) == ({"ratings in dialogues that lack a turn": count}, 3 - count)
    assert all(len(prompt.turns) in (1, 3) for prompt in newest_prompts(store, 9, 9))


def test_only_one_dialogue_is_in_memory_and_only_the_columns_that_are_needed(store):
    with store.writing() as connection:
        for number in range(200):
            connection.execute("INSERT INTO dialogues VALUES (?, 1, 'p', 'page', 0)", (f"d{number}",))
            for position, speaker in enumerate(("user", "agent")):
                long = "[" + "-0.5, " * 3000 + "-0.5]"
                insert_turn(connection, (f"d{number}", position, speaker, "Hi", "[1]", long, "{}", "0001", 1.0))
            insert_event(connection, (f"d{number}", 2 * number + 2, "thumb", 1, None, None, "p", 1.0))
    tracemalloc.start()
    found = read_examples(store, with_ids=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found), {one.ids for one in found.answers}) == (200, {None})
    assert {one.ids for one in read_examples(store).answers} == {(1,)}
    assert peak < 10**6  # the log-probabilities are 7 MB


def test_held_out_dialogues_are_never_trained_on(store):
    for i in range(60):
        dialogue, (turn,) = talk(store, asked=f"Question {i} ?")
        store.add_feedback(dialogue, f"p{i}", Rating("thumb", turn=turn, value=1))
    heldout = {one.id for one in store.dialogues() if one.heldout}
    examples = read_examples(store)
    training = training_set(examples, BotSettings(), (), "0")
    measured = heldout_set(examples, BotSettings())
    assert {one.dialogue for one in measured.all} == heldout
    assert {one.dialogue for one in training.all} == {one.id for one in store.dialogues()} - heldout
    assert training.seen == {one.event for one in training.all}
    assert training.people == sorted({one.person for one in training.all})
    assert training.concerned == sorted([*training.people, store.hash_person("p")])  # who began the dialogues


def test_repetitions_of_one_person_count_once_and_short_and_long_answers_are_left_out():
    found = trained(answer(1), answer(2, liked=False), answer(3, person="q", liked=False), answer(4, prompt=("Hi .",)))
    assert events(found) == [2, 3, 4]
    assert found.left_out == {"repetitions": 1}
    texts = {1: "", 2: "One", 3: "one two three four five", 4: "one two three four"}
    found = trained(*(answer(i, response=text) for i, text in texts.items()), min_words=1, max_words=4)
    assert events(found) == [2, 4]
    assert found.left_out == {"too short or too long (min_words, max_words)": 2}


@pytest.mark.parametrize(
    ("likes", "agreement", "kept"),
    [([1, 1, 0], 0.6, [1, 2]), ([1, 1, 0], 0.7, []), ([1, 0], 0.5, []), ([0, 1, 0, 0], 0.75, [1, 3, 4]), ([0], 1, [1])],
)
def test_people_who_judge_the_same_answer_must_agree(likes, agreement, kept):
    found = trained(*(answer(i, f"p{i}", bool(like)) for i, like in enumerate(likes, 1)), agreement=agreement)
    assert events(found) == kept
    assert sum(found.left_out.values()) == len(likes) - len(kept)


def test_older_feedback_is_replayed_up_to_its_share():
    answers = [answer(i, response=f"Answer {i} .") for i in range(1, 101)]
    found = trained(*answers, consumed=range(1, 91), replay_share=0.75)
    assert (found.num_new, len(found)) == (10, 40)
    assert set(range(91, 101)) <= set(events(found))
    assert len(set(events(found))) == 40
    assert found.seen == set(range(1, 101))
    assert len(trained(*answers, consumed=range(1, 91), replay_share=0)) == 10
    without_new = trained(*answers, consumed=range(1, 101))
    assert (without_new.all, without_new.num_new) == ([], 0)


def test_the_cap_drops_nothing_and_weighs_as_with_held_out_feedback():
    liar = [answer(i, "liar", response=f"T {i}") for i in range(1, 41)]
    others = [answer(40 + i, f"p{i % 4}", response=f"O {i}") for i in range(1, 21)]
    found = trained(*liar, *others, person_cap=0.2)
    assert events(found) == list(range(1, 61))
    assert found.left_out == {}
    assert found.people == ["liar", "p0", "p1", "p2", "p3"]
    assert found.weights == pytest.approx(dict.fromkeys(range(1, 41), 5 / 40) | dict.fromkeys(range(41, 61), 1))
    samples = [answer(i, SAMPLES, response=f"S {i}") for i in range(61, 91)]  # nobody's, so that nobody's share changes
    assert trained(*liar, *others, *samples, person_cap=0.2).weights == found.weights | dict.fromkeys(
        range(61, 91), 1.0
    )


def rate_answers(store, person, count, source, user=None):
    """`count` dialogues with an answer that this person likes; none is held out."""
    with store.writing():
        for number in range(count):
            dialogue = store.begin(person, source, user=user, heldout=False)
            store.add_turn(dialogue, 0, "user", f"Line {number} of {user or person} by {source} ?")
            store.add_feedback(dialogue, person, Rating("thumb", store.add_turn(dialogue, 1, "agent", "Yes ."), 1))


def test_what_one_person_rates_here_and_there_is_one_persons(store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for source, count in {"terminal": 300, "page": 20, "api": 6}.items():
        rate_answers(store, terminal_person(), count, source)
    for number in range(5):
        rate_answers(store, f"p{number}", 20, "page")
    found = training_set(read_examples(store), BotSettings(person_cap=0.2), (), "0")
    assert Counter(one.person for one in found.all)[store.hash_person(terminal_person())] == 326
    mine = [found.weights[one.event] for one in found.all if one.person == store.hash_person(terminal_person())]
    assert mine == pytest.approx([25 / 326] * 326)  # a fifth of 125


@pytest.mark.parametrize("known", [True, False])
def test_a_teachers_six_ratings_beside_900_of_other_people_are_trained_on(store, known):
    users = [store.hash_outside(f"user {number}") for number in range(90)]
    for user in users:
        rate_answers(store, user if known else "unknown", 10, "api", None if known else user)
    for dialogue in store.dialogues()[::150]:  # of other people
        asked = store.turns(dialogue.id)[0]
        event = store.add_turn(dialogue.id, 1, "agent", f"Two streets after {asked.text}")
        store.add_feedback(dialogue.id, "teacher", Rating("thumb", event, 1))
    found = training_set(read_examples(store), BotSettings(), (), "0")
    teacher = [one for one in found.all if one.person == store.hash_person("teacher")]
    others = [found.weights[one.event] for one in found.all if one not in teacher]
    assert (len(teacher), len(others), found.left_out) == (6, 900, {})
    assert {found.weights[one.event] for one in teacher} == {1}
    assert (
        set(others) == {1} if known else others == pytest.approx([6 / 900] * 900)
    )  # two people: half of the weight each
    assert len(found.people) == (91 if known else 2)


@pytest.mark.parametrize("times", [1, 10])
def test_older_feedback_is_replayed_by_weight(times):
    """Of 40 new and 100 older ratings of four people, a quarter of the weight is older, however often a fifth one rates."""
    others = [answer(i, f"p{i % 4}", response=f"O {i}") for i in range(1, 141)]
    liar = [answer(1000 + i, "liar", response=f"T {i}") for i in range(times * 90)]
    consumed = [*range(1, 101), *(1000 + i for i in range(times * 45))]
    shares = []
    for seed in range(40):
        settings = BotSettings(person_cap=0.2, replay_share=0.25)
        found = training_set(Examples([*others, *liar], []), settings, consumed, str(seed))
        older = sum(weight for event, weight in found.weights.items() if event in consumed)
        shares.append(older / sum(found.weights.values()))
    assert max(shares) < 0.25 + 1e-9
    assert sum(shares) / len(shares) == pytest.approx(0.25, abs=0.01)


@given(COUNTS, CAPS)
def test_nobody_has_more_than_the_share_of_the_weight(counts, cap):
    weights = cap_weights(counts, cap)
    totals = {person: weights[person] * counts[person] for person in counts}
    share = max_share(cap, len(counts))
    assert max(totals.values()) <= share * sum(totals.values())
    assert all(0 < weight <= 1 for weight in weights.values())
    lowered = [totals[person] for person in counts if weights[person] < 1]
    assert all(total == share * sum(totals.values()) or total == min(counts.values()) for total in lowered)


def test_the_weights_of_held_out_feedback():
    troll = [answer(i, "troll", response=f"T {i}", heldout=True) for i in range(40)]
    others = [answer(40 + i, f"p{i % 4}", response=f"O {i}", heldout=True) for i in range(20)]
    long = answer(98, response="word " * 300, heldout=True)
    found = heldout_set(Examples([*troll, *others, long, answer(99)], []), BotSettings(person_cap=0.2))
    assert len(found) == 60
    by_person = Counter()
    for one in found.all:
        by_person[one.person] += found.weights[one.event]
    assert by_person == pytest.approx({"troll": 5.0, "p0": 5, "p1": 5, "p2": 5, "p3": 5})


# --- the newest lines ---


def test_the_newest_lines_are_those_that_were_answered_last_rated_or_not(store):
    rated, (turn,) = talk(store, asked="Is it far ?")
    store.add_feedback(rated, "p", Rating("thumb", turn, 1))
    talk(store, asked="Is it new ?", answers=("Yes .", "No ."))  # alternatives: one line
    talk(store, asked="Is it far ?", answers=("No .",))  # said again: newer
    dialogue = store.begin("p", "terminal")
    store.add_turn(dialogue, 0, "user", "Nobody answered this .")
    assert [one.turns for one in newest_prompts(store, 50, 5)] == [("Is it far ?",), ("Is it new ?",)]
    assert [one.turns for one in newest_prompts(store, 1, 5)] == [("Is it far ?",)]
    assert [one.turns for one in newest_prompts(store, 50, 5, last_turn=turn)] == [("Is it far ?",)]
    assert store.last_turn() == 8


def test_a_newest_line_has_what_the_agent_saw_before_it(store):
    dialogue, (turn,) = talk(store, asked="Is it far ?")
    store.add_feedback(dialogue, "p", Rating("edit", turn, text="Two miles ."))
    store.add_turn(dialogue, 2, "user", "Which way ?")
    store.add_turn(dialogue, 3, "agent", "Left .")
    seen = [("Is it far ?", "Two miles .", "Which way ?"), ("Is it far ?",)]
    assert [one.turns for one in newest_prompts(store, 50, 3)] == seen
    assert [one.turns for one in newest_prompts(store, 50, 1)] == [("Which way ?",), ("Is it far ?",)]
