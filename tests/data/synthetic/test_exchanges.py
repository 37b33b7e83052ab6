"""Made-up exchanges at a hotel's desk: the notation of wordings, the judge, and pairs of replies."""

import hashlib
import json
import random
import re
import statistics

import pytest

from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.synthetic.exchanges import (
    alternatives,
    draw_exchange,
    exchange_splits,
    expand,
    expression,
    normal,
    write_exchanges,
)
from rlhf_dialog.data.synthetic.pairs import attends, derives, pairs_of, write_pairs
from rlhf_dialog.errors import UserError

CARELESS = 0.6


def test_files_are_read_as_prompts_with_reference_and_act(tmp_path):
    counts = write_exchanges(tmp_path / "desk", 50, 0)
    assert counts == {"train": 40, "validation": 5, "test": 5}
    for name, exchanges in exchange_splits(50, 0).items():
        prompts = PromptRules(context_size=1, min_context_size=1).load(str(tmp_path / "desk"), name)
        found = [(prompt.prompt_turns, prompt.reference, prompt.act) for prompt in prompts]
        assert found == [([one.prompt], one.reply, one.act) for one in exchanges]
        assert len(found) == counts[name]


@pytest.mark.slow
def test_the_data_of_the_quickstart_do_not_change(tmp_path):
    write_exchanges(tmp_path / "a", 300, 0, CARELESS)
    write_pairs(tmp_path / "b", 40, 300, 0)
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*.jsonl")))
    assert hashlib.sha256(written).hexdigest() == "0674785bdaaa36cbbc995ee575cf1f7ff584f58cb6b06eb60b5b1635d61399a6"


@pytest.mark.parametrize(
    ("number", "share", "words"),
    [
        (19, 0.0, "--num_dialogues 19 is too few to split; give 20"),
        (40, -0.1, "--careless -0.1"),
        (40, 1.5, "--careless 1.5"),
    ],
)
def test_what_is_refused_writes_nothing(tmp_path, number, share, words):
    with pytest.raises(UserError, match=words):
        write_exchanges(tmp_path / "data", number, 0, share)
    assert not any(tmp_path.iterdir())
    assert [len(some) for some in exchange_splits(20, 0, 1.0).values()] == [16, 2, 2]


WORDS = {"fruit": ["an apple", "(two|three) pears"], "day": ["today", "on Monday"]}


def test_a_list_is_split_outside_of_brackets():
    assert alternatives("a (b|c (d|e)) | f [g|h] | i") == ["a (b|c (d|e))", "f [g|h]", "i"]


def test_every_wording_comes_up_and_no_other():
    found = {expand("(I|we) eat [big] <fruit>", WORDS, random.Random(seed)) for seed in range(300)}
    fruits = ("an apple", "two pears", "three pears")
    assert {" ".join(text.split()) for text in found} == {
        " ".join(f"{who} eat {size} {fruit}".split()) for who in ("I", "we") for size in ("big", "") for fruit in fruits
    }


@pytest.mark.parametrize(
    ("text", "wanted"), [("I'm an  Ox, (so)!", " i'm a ox so"), ("Check-out?", " check out"), (" . ", "")]
)
def test_normal_text(text, wanted):
    assert normal(text) == wanted


def test_a_line_reads_its_wordings_and_names_its_slots():
    pattern = re.compile(expression("(I|we) eat [big] <fruit> {day}.", WORDS))
    assert pattern.fullmatch(normal("We eat big three pears, on Monday!")).group("day") == " on monday"
    assert pattern.fullmatch(normal("I eat an apple today"))
    for other in ("they eat an apple today", "I eat apple today", "I eat an apple", "I eat a bigapple today"):
        assert not pattern.fullmatch(normal(other)), other


@pytest.fixture(scope="module")
def exchanges():
    rng = random.Random(3)
    return [draw_exchange(rng) for _ in range(300)]


@pytest.mark.parametrize(
    ("prompt", "reply", "is_sentence", "does_attend"),
    [
        ("What time is breakfast?", "Breakfast is from seven to ten.", True, True),
        ("hi, what time is breakfast", "breakfast? it is from seven to ten, madam", True, True),
        ("What time is breakfast?", "Breakfast is in the dining room on the ground floor.", True, False),  # where it is
        ("What time is breakfast?", "Breakfast is from six to nine.", True, False),  # that is dinner
        ("What time is breakfast?", "Lunch is from twelve to two.", True, False),
        ("What time is breakfast?", "Breakfast is from seven to.", False, False),
        ("Please call me a taxi at nine.", "Of course, I will have a taxi here at nine o'clock.", True, True),
        ("Please call me a taxi at nine.", "Of course, I will have a taxi here at ten o'clock.", True, False),
        ("What time is breakfast?", "", False, False),
    ],
)
def test_sentences_written_by_hand(prompt, reply, is_sentence, does_attend):
    assert (derives(reply), attends(prompt, reply)) == (is_sentence, does_attend)


@pytest.mark.slow
def test_pairs_prefer_what_was_said_to_every_kind_of_fault(exchanges):
    """Half are careless, a quarter are replies to others, and most of the last quarter are no sentences."""
    pairs = [*pairs_of(exchanges, 400, random.Random(1))]
    said, replies = {(one.prompt, one.reply) for one in exchanges}, {one.reply for one in exchanges}
    assert all((pair.prompt, pair.chosen) in said for pair in pairs)
    assert not any(attends(pair.prompt, pair.rejected) for pair in pairs[:60])
    assert 60 <= sum(not derives(pair.rejected) for pair in pairs) <= 100
    assert sum(pair.rejected in replies for pair in pairs) >= 100
    lengths = [(len(pair.chosen.split()), len(pair.rejected.split())) for pair in pairs]
    assert 0.4 < statistics.mean(a > b for a, b in lengths if a != b) < 0.6  # length decides nothing
    found = json.loads(pairs[0].to_json())
    assert found == {"prompt": [pairs[0].prompt], "chosen": pairs[0].chosen, "rejected": pairs[0].rejected}
    first, second, other = ([*pairs_of(exchanges, 20, random.Random(seed))] for seed in (1, 1, 2))
    assert first == second != other
