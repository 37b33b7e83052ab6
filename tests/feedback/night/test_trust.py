"""Who contradicts the others: regression and concordance against slow ones, the rule, and groups of people who were made up."""

import math
import random
import shutil

import numpy as np
import pytest
from taught_bots import new_bot, set_keys, talk_to

from rlhf_dialog.feedback.night import trust
from rlhf_dialog.feedback.night.night import learn, take_snapshot
from rlhf_dialog.feedback.night.trust import Agreement, Trust, agreements, concordance, judged, trust_in, trusted
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import Answer, Examples, Pair, read_examples
from rlhf_dialog.feedback.store.settings import BotSettings, read_settings

WORDS = [
    *"?.!",
    "tea",
    "water",
    "bread",
    "a",
    "the",
    "of",
    "is",
    "near",
    "far",
    "room",
    "night",
    "please",
    "yes",
    "no",
    "we",
]


def likes_questions(text):
    return "?" in text.split()


def people_of(rows, seed=0, taste=None, wrong=None, heldout=False):
    """Examples of people who say `rows[person]` things each; `taste` and `wrong` by person, else questions, a fifth is wrong."""
    draw, answers, pairs = random.Random(seed), [], []
    for person, count in rows.items():
        likes, share = (taste or {}).get(person, likes_questions), (wrong or {}).get(person, 0.2)
        for number in range(count):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(2)]
            event, is_right = len(answers) + len(pairs) + 1, draw.random() >= share
            where = (person, f"{person} {number // 2}", event)
            if likes(texts[0]) != likes(texts[1]) and draw.random() < 0.3:
                better, worse = texts if likes(texts[0]) == is_right else texts[::-1]
                pairs.append(Pair((f"{event} ?",), better, worse, "choice", *where, heldout=heldout))
            else:
                liked = likes(texts[0]) == is_right
                answers.append(Answer((f"{event} ?",), texts[0], liked, "thumb", *where, heldout=heldout))
    return Examples(answers, pairs)


def dislikes_questions(text):
    return not likes_questions(text)


HONEST = {f"person {i}": 10 + 4 * i for i in range(10)}
TROLL = {"taste": {"troll": dislikes_questions}, "wrong": {"troll": 0.0}}


@pytest.mark.parametrize("seed", range(5))
def test_who_is_wrong_about_everything_is_left_out_and_nobody_else(seed):
    examples = people_of(HONEST | {"troll": 180}, seed, **TROLL)
    found = trust_in(examples, BotSettings(person_cap=0.1))
    assert found.left_out == {"troll"}
    used = trusted(examples, found)
    assert {one.person for one in used.all} == set(HONEST)
    assert used.left_out == {"of people who contradict the others (contradiction_confidence)": 180}
    assert trust_in(examples, BotSettings(contradiction_confidence=None)) == Trust()
    assert trusted(examples, Trust()) == examples


@pytest.mark.parametrize("wrong", [0.2, 0.5])
def test_people_with_errors_are_never_left_out(wrong):
    """Also where all feedback is noise, and nothing can be predicted."""
    for seed in range(20):
        examples = people_of(HONEST, seed, wrong=dict.fromkeys(HONEST, wrong))
        assert not trust_in(examples, BotSettings(person_cap=0.1)).left_out


def test_of_two_camps_of_equal_size_nobody_is_left_out():
    camps = dict.fromkeys(list(HONEST)[::2], dislikes_questions)
    contradicted = 0
    for seed in range(20):
        found = trust_in(people_of(dict.fromkeys(HONEST, 60), seed, camps), BotSettings(person_cap=0.1))
        assert not found.left_out
        contradicted += bool(found.contradicting)
    assert contradicted  # the case is seen


def test_a_minority_that_colludes_cannot_silence_the_majority():
    """Three of twelve who are always wrong and say most."""
    three = [f"troll {i}" for i in range(3)]
    for seed in range(10):
        wrong = {"taste": dict.fromkeys(three, dislikes_questions), "wrong": dict.fromkeys(three, 0.0)}
        examples = people_of(dict.fromkeys(list(HONEST)[:9], 40) | dict.fromkeys(three, 200), seed, **wrong)
        assert trust_in(examples, BotSettings(person_cap=0.1)).left_out <= set(three)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_with_fewer_than_four_who_said_enough_nobody_is_left_out(count):
    rows = dict.fromkeys(list(HONEST)[: count - 1], 150) | {"troll": 150, "quiet": 9, "silent": 1}
    assert not trust_in(people_of(rows, 0, **TROLL), BotSettings()).left_out


def test_what_is_held_out_takes_no_part():
    examples = people_of(HONEST | {"troll": 180}, 0, **TROLL, heldout=True)
    assert trust_in(examples, BotSettings()) == Trust((), (), None)


# -- the rule


def agreeing(value, error=0.02, count=50, person="a"):
    return Agreement(person, value, error, count)


OTHERS = tuple(agreeing(0.7, person=f"p{i}") for i in range(5))


@pytest.mark.parametrize(
    ("one", "left_out"),
    [
        (agreeing(0.3), True),
        (agreeing(0.44, error=0.02), True),  # of six people: 1 - 0.01 / 6 is 2.94 deviations, 0.4988
        (agreeing(0.442, error=0.02), False),  # 0.5008
        (agreeing(0.0, count=9), False),  # too little
    ],
)
def test_the_confidence_is_over_all_people_together(one, left_out):
    assert (judged((one, *OTHERS), 0.99).left_out == {"a"}) is left_out


@pytest.mark.parametrize(
    ("people", "why"),
    [
        ((agreeing(0.1), *OTHERS[:2]), "3 people have said enough to be compared, and 4 are needed"),
        ((agreeing(0.1), *(agreeing(0.5, person=str(i)) for i in range(5))), "the others do not agree with each other"),
        (
            (agreeing(0.1), agreeing(0.1, person="b"), *OTHERS[:3]),
            "that would be more than a third of the 5 who have said enough",
        ),
        ((agreeing(0.1), agreeing(0.1, person="b"), *OTHERS[:4]), None),
    ],
)
def test_when_nobody_is_left_out(people, why):
    found = judged(people, 0.99)
    assert found.why_used == why
    assert found.left_out == (frozenset() if why else {"a", "b"})


def test_what_is_said():
    assert Trust(OTHERS).lines() == []
    one = Agreement("0a1b2c3d4e5f6071", 0.12, 0.04, 50)
    assert Trust((one,), (one,)).lines() == [
        "1 person contradicts the others, and is not used in training and gate (0a1b2c3d4e5f6071 agrees in 12% of the "
        "comparisons [4, 20])"
    ]
    [line] = Trust((one,) * 7, (one,) * 6, "of a reason").lines()
    assert line.startswith(
        "6 people contradict the others, and are used all the same: of a reason (0a1b2c3d4e5f6071 agrees in"
    )
    assert line.endswith("[4, 20]; ...)")


# -- the numbers


def test_the_concordance_and_its_error():
    """Against a loop over all comparisons, and the spread of many samples of dialogues."""
    draw = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(300):
        examples, scores = [], []
        for dialogue in range(15):
            shared = draw.normal()
            for number in range(3):
                liked = bool(draw.random() < 0.5)
                where = ("a", f"d{dialogue}", 3 * dialogue + number)
                examples.append(Answer((), "", liked, "score" if number == 2 else "thumb", *where))
                scores.append(shared + 0.5 * liked + 0.5 * draw.normal())
        examples.append(Pair((), "", "", "edit", "a", "d0", 99))
        scores.append(float(draw.normal()))
        value, error = concordance(examples, np.asarray(scores))
        values.append(value)
        errors.append(error)
    assert value == pytest.approx(slow_concordance(examples, scores))
    assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.15)


def slow_concordance(examples, scores):
    top = bottom = 0.0
    for kind in ("thumb", "score"):
        up, down = (
            [s for one, s in zip(examples, scores, strict=True) if one.kind == kind and one.liked is label]
            for label in (True, False)
        )
        share = sum((s > t) + (s == t) / 2 for s in up for t in down) / (len(up) * len(down))
        worth = 4 * len(up) * len(down) / (len(up) + len(down))
        top, bottom = top + worth * share, bottom + worth
    pairs = [score for one, score in zip(examples, scores, strict=True) if one.kind == "edit"]
    return (top + sum(score > 0 for score in pairs)) / (bottom + len(pairs))


def test_the_error_is_never_below_that_of_chance():
    """Of 3 liked and 4 disliked answers in perfect order the spread is 0: sqrt(8 / (12 * 12)) (Mann & Whitney 1947)."""
    examples = [Answer((), "", i < 3, "thumb", "a", f"d{i}", i) for i in range(7)]
    assert concordance(examples, np.arange(7.0)) == (0.0, pytest.approx(math.sqrt(8 / 144)))
    assert concordance(examples[:3], np.arange(3.0)) is None


def test_a_person_is_scored_by_the_feedback_of_all_others():
    """Ridge regression as least squares with rows of the penalty, on features that are written down here."""
    texts = [("yes", True), ("no no", False), ("yes no", True), ("yes", True), ("no", False), ("no yes ?", False)] * 3
    answers = [
        Answer((str(i),), text, liked, "thumb", "ab"[i % 2], f"d{i}", i) for i, (text, liked) in enumerate(texts)
    ]
    pair = Pair(("p",), "yes yes yes", "no", "edit", "a", "e", 99)
    features = {
        "yes": [0, 1, 0, 1, 0],
        "no": [1, 0, 0, 1, 0],
        "no no": [1, 0, 0, 1, math.log2(3) - 1],
        "yes no": [1, 1, 0, 1, math.log2(3) - 1],
        "no yes ?": [1, 1, 1, 0, 1],
        "yes yes yes": [0, 1, 0, 0, 1],
    }
    classes = {"no yes ?": 1, "yes yes yes": 1}

    def row(text):
        *words, _, length = features[text]
        return [*words, 1 - classes.get(text, 0), classes.get(text, 0), length - 2]

    others = [one for one in answers if one.person == "b"]
    fitted = [[*row(one.response), 1] for one in others]
    labels = [1.0 if one.liked else -1.0 for one in others]
    penalty = np.diag([math.sqrt(trust.RIDGE)] * 6 + [math.sqrt(1e-6)])
    weights = np.linalg.lstsq(np.vstack([fitted, penalty]), np.r_[labels, np.zeros(7)], rcond=None)[0]
    own = [*(one for one in answers if one.person == "a"), pair]
    scores = [np.dot(row(one.response), weights[:6]) for one in own[:-1]]
    scores.append(np.dot(np.subtract(row(pair.chosen), row(pair.rejected)), weights[:6]))
    found = {one.person: one for one in agreements([*answers, pair], 1.0)}
    assert found["a"].value == pytest.approx(concordance(own, np.asarray(scores).round(9))[0])
    assert found["a"].num_events == 10
    words = trust._words([*answers, pair])
    assert trust._scores(own, words, trust._moments(others, words)) == pytest.approx(scores, abs=1e-8)


def test_a_sign_of_a_script_without_spaces_is_a_word():
    assert trust._tokens("你好吗? Fine, it's 3.") == ["你", "好", "吗", "?", "fine", ",", "it", "'", "s", "3", "."]


# -- in a night


@pytest.fixture(scope="module")
def bot_with_troll(tmp_path_factory):
    """Five people, and one who says the opposite of all that they say."""
    bot = new_bot(tmp_path_factory.mktemp("troll"))
    talk_to(bot, 120, people=5)
    store = bot.store()
    for number in range(60):
        dialogue = store.begin("troll", "terminal")
        store.add_turn(dialogue, 0, "user", f"Hello troll {number} .")
        is_good = number % 2 == 0
        turn = store.add_turn(dialogue, 1, "agent", "Why ?" if is_good else "I see the sea .")
        store.add_feedback(dialogue, "thumb", "troll", turn=turn, value=-1 if is_good else 1)
    store.close()
    return bot


@pytest.fixture
def taught(tmp_path, bot_with_troll):
    shutil.copytree(bot_with_troll.folder, tmp_path / "bot")
    return Bot(tmp_path / "bot")


def hashed(bot, person):
    store = bot.store()
    try:
        return store.hashed(person)
    finally:
        store.close()


@pytest.mark.thorough
def test_a_night_leaves_the_person_out_of_training_and_gate_and_says_so(taught):
    troll = hashed(taught, "troll")
    snapshot = take_snapshot(taught, read_settings(taught.settings_path))
    assert snapshot.trust.left_out == {troll}
    for some in (snapshot.training, snapshot.heldout):
        assert len({one.person for one in some.all}) == 5
        assert troll not in {one.person for one in some.all}
    report = learn(taught, dry_run=True)
    [line] = [line for line in report.lines() if "contradict" in line and not line.startswith("left out")]
    assert line.startswith(f"1 person contradicts the others, and is not used in training and gate ({troll} agrees in")
    learn(taught)
    assert troll not in taught.lineage()["versions"]["0002"]["people"]


def test_it_can_be_turned_off(taught):
    set_keys(taught, contradiction_confidence=None)
    snapshot = take_snapshot(taught, read_settings(taught.settings_path))
    troll = hashed(taught, "troll")
    assert all(troll in {one.person for one in some.all} for some in (snapshot.training, snapshot.heldout))
    assert not any("contradict" in line for line in learn(taught, dry_run=True).lines())


@pytest.mark.thorough
def test_nothing_remains_of_a_person_who_is_forgotten(taught):
    troll = hashed(taught, "troll")
    learn(taught)
    taught.forget(troll)
    store = taught.store()
    found = trust_in(read_examples(store), read_settings(taught.settings_path))
    store.close()
    assert troll not in {one.person for one in found.people}
    files = [path for path in taught.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if troll.encode() in path.read_bytes()]
