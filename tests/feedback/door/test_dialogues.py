"""Which dialogue a request goes on with: exactly the one that it tells, of the same person, and else a new one."""

import pytest

from rlhf_dialog.feedback.door.answers import Answers
from rlhf_dialog.feedback.store.examples import read_examples
from rlhf_dialog.feedback.store.store import Rating, is_heldout
from tests.feedback.door.conftest import text_of
from tests.parts.bots import new_version, rows


@pytest.fixture
def seen(monkeypatch, answering) -> list[tuple[str, ...]]:
    """The turns that were answered."""
    seen, stream = [], answering.stream

    def asked(turns, *more):
        seen.append(tuple(turns))
        return stream(turns, *more)

    monkeypatch.setattr(answering, "stream", asked)
    return seen


@pytest.fixture
def turn_of(store):
    return lambda answer: store.find_answer(answer["id"].removeprefix("chatcmpl-"))


def test_a_first_message_begins_a_dialogue_and_the_next_one_goes_on_with_it(ask, store, turn_of):
    first, other = ask("Hello"), ask("Hello")
    assert len(store.dialogues()) == 2
    answer = ask(" Hello\r\n", f"{text_of(first)} ", "And then ?")
    assert turn_of(answer).dialogue == turn_of(first).dialogue != turn_of(other).dialogue
    answer = ask("Hello", text_of(first), "And then ?", text_of(answer), "And <EOU> now ?")
    assert (turn_of(answer).dialogue, turn_of(answer).position) == (turn_of(first).dialogue, 5)
    again = ask("Hello", text_of(first), "And then ?", text_of(turn_of_text(store, turn_of(first), 3)), "And now ?")
    assert (turn_of(again).dialogue, turn_of(again).position) == (turn_of(first).dialogue, 5)  # another answer
    assert store.copies() == set()


def turn_of_text(store, turn, position):
    (found,) = [one for one in store.turns(turn.dialogue) if one.position == position]
    return {"choices": [{"message": {"content": found.text}}]}


def test_of_two_branches_each_goes_on_and_learning_reads_what_was_seen(ask, store, turn_of, seen):
    first = ask("Hello")
    one = ask("Hello", text_of(first), "Left ?")
    other = ask("Hello", text_of(first), "Right ?")  # an edit
    assert turn_of(one).dialogue == turn_of(first).dialogue != turn_of(other).dialogue
    copies = store.copies()
    branch = store.turns(turn_of(other).dialogue)
    assert [(turn.text, turn.id in copies, turn.version) for turn in branch] == [
        ("Hello", True, None),
        (text_of(first), True, None),
        ("Right ?", False, None),
        (text_of(other), False, "0001"),
    ]
    last = ask("Hello", text_of(first), "Left ?", text_of(one), "And ?")
    late = ask("Hello", text_of(first), "Right ?", text_of(other), "And ?")
    for answer, begun in ((last, one), (late, other)):
        assert turn_of(answer).dialogue == turn_of(begun).dialogue
    answers = [turn_of(answer) for answer in (first, one, other, last, late)]
    for turn in answers:
        store.add_feedback(turn.dialogue, "somebody", Rating("thumb", turn.id, 1))
    prompts = {one.event: one.prompt_turns for one in read_examples(store).answers}
    assert [prompts[event] for event in sorted(prompts)] == seen


def test_another_answer_to_an_earlier_turn_begins_a_branch(ask, store, turn_of):
    first = ask("Hello")
    second = ask("Hello", text_of(first), "Left ?")
    again = ask("Hello", text_of(first), "Left ?")
    assert turn_of(again).dialogue == turn_of(second).dialogue
    ask("Hello", text_of(first), "Left ?", text_of(again), "And ?")
    late = ask("Hello", text_of(first), "Left ?")
    assert turn_of(late).dialogue != turn_of(second).dialogue
    assert len(store.copies()) == 2


def test_the_second_choice_begins_a_branch(ask, store, turn_of, seen):
    both = ask("Hello", n=2, seed=1)
    answer = ask("Hello", text_of(both, 1), "And ?")
    assert turn_of(answer).dialogue != turn_of(both).dialogue
    assert seen[-1] == ("Hello", text_of(both, 1), "And ?")
    name = both["id"].removeprefix("chatcmpl-")
    chosen, other = store.find_answer(f"{name}-1"), store.find_answer(name)
    store.add_feedback(chosen.dialogue, "somebody", Rating("choice", chosen.id, other=other.id))
    answer = ask("Hello", text_of(both, 1), "But ?")
    assert turn_of(answer).dialogue == chosen.dialogue


def test_a_dialogue_goes_on_with_what_was_written_in_the_place_of_an_answer(ask, store, turn_of):
    first = ask("Hello")
    turn = turn_of(first)
    store.add_feedback(turn.dialogue, "somebody", Rating("edit", turn.id, text="Good morning"))
    assert turn_of(ask("Hello", text_of(first), "And ?")).dialogue != turn.dialogue
    assert turn_of(ask("Hello", "Good morning", "And ?")).dialogue == turn.dialogue


def test_a_history_from_elsewhere_is_copied_with_its_greeting(ask, store, turn_of):
    answer = ask("Welcome .", "Hello", "Long ago", "And ?", system="Be kind .")
    turns = store.turns(turn_of(answer).dialogue)
    assert [turn.speaker for turn in turns] == ["agent", "user", "agent", "user", "agent"]
    assert store.copies() == {turn.id for turn in turns[:3]}
    later = ask("Welcome .", "Hello", "Long ago", "And ?", text_of(answer), "So ?", system="Be kind .")
    assert turn_of(later).dialogue == turn_of(answer).dialogue
    assert turn_of(ask("Welcome .", "Hi")).dialogue != turn_of(ask("Welcome .", "Hi")).dialogue


def test_another_system_message_chat_or_person_is_another_dialogue(ask, door, store, turn_of):
    first = ask("Hello", headers={"X-Session-Id": "one"})
    on = ["Hello", text_of(first), "And ?"]
    dialogue = turn_of(first).dialogue
    assert turn_of(ask(*on, system="Be kind .")).dialogue != dialogue
    assert turn_of(ask(*on, headers={"X-OpenWebUI-Chat-Id": "two"})).dialogue != dialogue
    for headers in ({"X-OpenWebUI-User-Id": "ann"}, {"X-OpenWebUI-User-Id": "ben"}):
        assert turn_of(ask(*on, headers=headers)).dialogue != dialogue
    assert len(rows_of(store, "SELECT DISTINCT hash FROM users")) == 2
    assert len(rows_of(store, "SELECT DISTINCT hash FROM chats")) == 2
    assert turn_of(ask(*on, headers={"X-OpenWebUI-Chat-Id": "one"})).dialogue == dialogue
    on += [rows_of(store, "SELECT text FROM turns WHERE dialogue = ? AND position = 3", dialogue)[0], "So ?"]
    assert turn_of(ask(*on)).dialogue == dialogue  # a program need not name its dialogues


def rows_of(store, statement, *values):
    return [row[0] for row in store.rows(statement, values)]


@pytest.mark.slow
def test_a_branch_is_held_out_as_the_dialogue_that_it_came_from(ask, store, turn_of):
    origins = {}
    for number in range(99):
        answer = ask(f"Hello {number}", max_tokens=1)
        origins[is_heldout(turn_of(answer).dialogue)] = [f"Hello {number}", text_of(answer)]
        if len(origins) == 2:
            break
    for heldout, (asked, answered) in origins.items():
        for number in range(6):
            edited = ask(asked, answered, f"Edit {number}", max_tokens=1)
            branch = ask(asked, answered, f"Edit {number}", text_of(edited), "So ?", f"x{number}", "On ?", max_tokens=1)
            assert {is_heldout(turn_of(one).dialogue) for one in (edited, branch)} == {heldout}


def test_a_dialogue_goes_on_with_its_version_after_a_restart_too(ask, bot, door, store, answering, turn_of):
    first = ask("Hello")
    new_version(bot)
    later = ask("Hello", text_of(first), "And ?")
    assert (later["system_fingerprint"], ask("Hi")["system_fingerprint"]) == ("0001", "0002")
    door.answers = Answers(store, answering)
    on = ["Hello", text_of(first), "And ?", text_of(later), "So ?"]
    assert ask(*on)["system_fingerprint"] == "0001"
    with bot._changing() as tree:
        tree["versions"]["0001"]["tainted"] = True
    assert ask(*on)["system_fingerprint"] == "0002"
    assert answering._served._holders.total() == 0
    assert rows(bot, "SELECT count(*) FROM dialogues") == [(2,)]
