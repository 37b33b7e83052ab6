"""The made-up dialogues: files, splits, acts, and answers that fit their questions."""

import random
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from experiments.everyday_dialogues import dialogues as made_up
from rlhf_dialog.errors import UserError

SPLITS = ("train", "validation", "test")
INFORM, QUESTION, DIRECTIVE, COMMISSIVE = 1, 2, 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("dialogues") / "data"
    made_up.write_dialogues(path, 3000, 0)
    return path


def read(folder: Path, split: str) -> list[tuple[list[str], list[int]]]:
    """The dialogues of a split, read as the data set's own note says."""
    texts = (folder / split / f"dialogues_{split}.txt").read_text(encoding="ascii").splitlines()
    acts = (folder / split / f"dialogues_act_{split}.txt").read_text(encoding="ascii").splitlines()
    assert len(texts) == len(acts)
    turns = [[turn.strip() for turn in text.split("__eou__")[:-1]] for text in texts]
    return [(one, [int(digit) for digit in line.split(" ")]) for one, line in zip(turns, acts, strict=True)]


@pytest.fixture(scope="module")
def dialogues(folder) -> list[tuple[list[str], list[int]]]:
    return [dialogue for split in SPLITS for dialogue in read(folder, split)]


def replies(dialogues, pattern: str) -> list[tuple[re.Match, str, int]]:
    """(match, next turn, its act) of every turn that matches the whole pattern."""
    found = []
    for turns, acts in dialogues:
        for index, turn in enumerate(turns[:-1]):
            if match := re.fullmatch(pattern, turn):
                found.append((match, turns[index + 1], acts[index + 1]))
    return found


def test_layout(folder, dialogues):
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.txt")} == {
        f"{split}/dialogues_{kind}{split}.txt" for split in SPLITS for kind in ("", "act_")
    }
    assert {split: len(read(folder, split)) for split in SPLITS} == {"train": 2400, "validation": 300, "test": 300}
    for turns, acts in dialogues:
        assert len(turns) == len(acts)
        assert 4 <= len(turns) <= 9
        assert set(acts) <= {1, 2, 3, 4}
    line = (folder / "test" / "dialogues_test.txt").read_text().splitlines()[0]
    assert line == " ".join(f"{turn} __eou__" for turn in read(folder, "test")[0][0])


def test_text_is_spaced_ascii_sentences(dialogues):
    for turn in (turn for turns, _ in dialogues for turn in turns):
        assert re.fullmatch(r"[A-Z][A-Za-z]*( ([A-Za-z]+|[.,?!'])| )*", turn), turn
        assert "  " not in turn
        assert turn.endswith((" .", " ?", " !")), turn
        assert not re.search(r"[.?!] [a-z]", turn), turn
        assert not re.search(
            r"\b[Aa] ([aei]|o(?!ne\b)|u(?!ni|se))|\b[Aa]n (?!hour)[b-df-hj-np-tv-z]|\b(\w+) \2\b", turn
        ), turn


def test_length_and_vocabulary(dialogues):
    lengths = [len(turn.split()) for turns, _ in dialogues for turn in turns]
    assert 8 <= sum(lengths) / len(lengths) <= 11
    assert sum(4 <= length <= 16 for length in lengths) / len(lengths) > 0.97
    assert 600 <= len({word.lower() for turns, _ in dialogues for turn in turns for word in turn.split()}) <= 1250


def test_act_shares(dialogues):
    counts = Counter(act for _, acts in dialogues for act in acts)
    shares = {act: count / counts.total() for act, count in counts.items()}
    for act, wanted in {INFORM: 0.45, QUESTION: 0.27, DIRECTIVE: 0.15, COMMISSIVE: 0.13}.items():
        assert shares[act] == pytest.approx(wanted, abs=0.04)


def test_acts_can_be_told_from_the_text(dialogues):
    request = re.compile(r"\b(could|can|would|may) (you|i|we|someone)\b|\bwhy don ' t\b|\bcould have\b", re.I)
    for turns, acts in dialogues:
        for turn, act in zip(turns, acts, strict=True):
            if act == QUESTION:
                assert turn.endswith("?"), turn
            elif turn.endswith("?"):
                assert act == DIRECTIVE, turn
                assert request.search(turn), turn
            if act == COMMISSIVE:
                assert re.search(
                    r"\bI\b|\b[Ww]e will\b|\b[Ll]et me\b|\byou can\b|\bwill be here\b|\bwill be there\b", turn
                )


def test_requests_are_mostly_accepted_but_not_always(dialogues):
    after = Counter(following for _, acts in dialogues for act, following in pairwise(acts) if act == DIRECTIVE)
    assert 0.45 < after[COMMISSIVE] / after.total() < 0.75
    assert after[INFORM] / after.total() > 0.1


def test_dialogues_are_different_and_held_out(folder):
    splits = {split: {" ".join(turns) for turns, _ in read(folder, split)} for split in SPLITS}
    assert [len(splits[split]) for split in SPLITS] == [2400, 300, 300]
    assert not splits["train"] & (splits["validation"] | splits["test"])
    assert not splits["validation"] & splits["test"]


def test_few_near_duplicates(folder):
    """At least half of the distinct utterances of 4 tokens or more stand in one dialogue of validation or test."""

    def longer(turns: list[str]) -> set[str]:
        plain = [" ".join(re.findall(r"[a-z0-9]+", turn.lower())) for turn in turns]
        return {turn for turn in plain if len(turn.split()) >= 4}

    places = defaultdict(set)
    for split in ("validation", "test"):
        for number, (turns, _) in enumerate(read(folder, split)):
            for turn in longer(turns):
                places[turn].add((split, number))
    near = 0
    for turns, _ in read(folder, "train"):
        mine = longer(turns)
        shared = Counter(place for turn in mine for place in places[turn])
        near += bool(shared) and 2 * max(shared.values()) >= len(mine)
    assert near / 2700 < 0.03


def test_a_price_question_gets_a_price(dialogues):
    found = replies(dialogues, r"(?:How much (?:is|are)|What is the price of) the (.+?)(?: cost)? \?")
    money = [(match, reply) for match, reply, act in found if act == INFORM and "dollars" in reply]
    assert len(money) > 100
    garments = [(m[1], reply) for m, reply in money if m[1].split()[0] in ("red", "blue", "green", "black", "white")]
    assert len(garments) > 10
    for garment, reply in garments:
        assert garment.split()[-1] in reply
        assert (" are " in reply or " cost " in reply) == (garment.endswith("s") and not garment.endswith("dress"))


def test_a_train_question_gets_the_train_to_that_city(dialogues):
    found = replies(dialogues, r"(?:When|What time) does the next train to (\w+) leave \?")
    answers = [(match[1], reply) for match, reply, act in found if act == INFORM]
    assert len(answers) > 5
    for city, reply in answers:
        assert city in reply


def test_a_time_question_gets_a_time(dialogues):
    found = replies(dialogues, r"(?:When|What time|At what time) (?:does it|does the meeting|is the meeting) .*\?")
    assert len(found) > 10
    clock = re.compile(
        r"o ' clock|half past|quarter|\b(past|to) (one|two|three|four|five|six|seven|eight|nine|ten|eleven)"
    )
    for match, reply, act in found:
        assert clock.search(reply) or act == COMMISSIVE or "moved to" in reply, (match[0], reply)


def test_yes_or_no_answers_follow_yes_or_no_questions(dialogues):
    openers = re.compile(
        r"(?:^|[.,?!] )(?:And )?(Is|Are|Do|Don|Does|Did|Have|Has|Can|May|Will|Was|Must|Would|Could) |or ", re.I
    )
    for turns, acts in dialogues:
        for before, act, turn, own in zip(turns, acts, turns[1:], acts[1:], strict=False):
            if act == QUESTION and own == INFORM and re.match(r"(Yes|No) ,", turn):
                assert openers.search(before), (before, turn)


def test_generate_dialogue_depends_on_the_generator_alone():
    assert made_up.generate_dialogue(random.Random(5)) == made_up.generate_dialogue(random.Random(5))


def test_too_few_dialogues_are_refused(tmp_path):
    with pytest.raises(UserError, match="--num_dialogues 3"):
        made_up.write_dialogues(tmp_path / "data", 3, 0)
    assert not (tmp_path / "data").exists()


def test_every_move_can_be_reached_and_followed():
    for name, scene in made_up.load_grammar().scenes.items():
        reached = {word for move in scene.values() for word in move.following} - {"end"}
        assert reached == set(scene) - {"start"}, name
        for move_name, move in scene.items():
            for line in move.lines:
                after = [word for word in move.following if word == "end" or scene[word].fitting(line.asks)]
                assert after, (name, move_name, line.text)
                answered = any(
                    line.asks in other.answers for word in after if word != "end" for other in scene[word].lines
                )
                assert line.asks is None or answered, (name, move_name, line.text)


def test_no_move_is_written_twice():
    for path in made_up.GRAMMAR.glob("*.yaml"):
        names = [key.split()[0] for key in yaml.safe_load(path.read_text())]
        assert len(names) == len(set(names)), path.name


def test_the_notation():
    grammar = made_up.Grammar(
        words={"fruit": ["apples/pl"], "one": ["orange"], "person": ["Ann/f", "Ben/m"]},
        forms={"is": {"default": "is", "pl": "are"}, "he": {"default": "they", "m": "he", "f": "she"}},
        scenes={},
    )
    teller = made_up.Teller(random.Random(0), grammar)
    assert (
        teller.tell("the {fruit} {fruit:is} here . {one:is} it a {one} ?") == "The apples are here . Is it an orange ?"
    )
    me, you = re.fullmatch(r"(\w+) to (\w+)", teller.tell("{me} to {you}")).groups()
    assert {me, you} == {"Ann", "Ben"}
    assert teller.tell("{me} to {you}") == f"{you} to {me}"
    assert teller.tell("I'm (a|a) <one>") == "I ' m an orange"


def test_lines_answer_what_was_asked():
    lines = [made_up._line(text) for text in ("?when On Monday .", "?where,who In town . #far", "I see .")]
    assert [line.text for line in lines] == ["On Monday .", "In town .", "I see ."]
    assert lines[1].asks == "far"
    move = made_up.Move(1, ["end"], lines)
    assert move.fitting("when") == [lines[0]]
    assert move.fitting("who") == [lines[1]]
    assert move.fitting(None) == move.fitting("why") == [lines[2]]
