"""METEOR against numbers by hand and a slow second implementation; WordNet found, refused and left out."""

import logging
import random
from fractions import Fraction
from types import SimpleNamespace

import nltk.data
import pytest
from nltk.corpus import wordnet as nltk_wordnet
from nltk.stem.porter import PorterStemmer
from nltk.translate.meteor_score import meteor_score

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.rewards.meteor import Meteor, load_wordnet, meteor

SYNONYMS = {"car": ["car", "auto", "motor_car"], "glad": ["glad", "happy"]}
WORDS = "the a cat cats sat sitting sits on walk walked walking walks car auto glad happy ! . ,"


class FakeWordNet:
    def synsets(self, word):
        lemmas = [SimpleNamespace(name=lambda lemma=lemma: lemma) for lemma in SYNONYMS.get(word, [])]
        return [SimpleNamespace(lemmas=lambda: lemmas)] if lemmas else []


class NoWordNet:
    def synsets(self, word):
        return []


def slow_meteor(reference, response, synonyms):
    """Lavie & Agarwal 2007 on words split at spaces; in each stage the last response word takes the last free match.

    As in nltk the synonym stage sees stems: the stem of a response word is looked up, and its lemmas are compared with
    stems of the reference ("happy" has the stem "happi", which is no lemma, so "glad" never finds it).
    """
    stem = PorterStemmer().stem
    ref, hyp = reference.lower().split(), response.lower().split()
    stages = [
        lambda h, r: h == r,
        lambda h, r: stem(h) == stem(r),
        lambda h, r: stem(r) in [word for word in synonyms.get(stem(h), []) if "_" not in word],
    ]
    matched = {}
    for stage in stages:
        for i in reversed(range(len(hyp))):
            for j in reversed(range(len(ref))):
                if i not in matched and j not in matched.values() and stage(hyp[i], ref[j]):
                    matched[i] = j
    if not matched:
        return 0.0
    precision, recall = Fraction(len(matched), len(hyp)), Fraction(len(matched), len(ref))
    mean = precision * recall / (Fraction(9, 10) * precision + Fraction(1, 10) * recall)
    chunks = sum(i == 0 or matched.get(i - 1) != matched[i] - 1 for i in matched)
    return float(mean * (1 - Fraction(1, 2) * Fraction(chunks, len(matched)) ** 3))


def random_pairs(count):
    chance = random.Random(7)
    for _ in range(count):
        yield tuple(" ".join(chance.choices(WORDS.split(), k=chance.randint(1, 12))) for _ in range(2))


@pytest.fixture
def wordnet_folder(tmp_path, monkeypatch):
    """A WordNet of one synset, {car, auto}, in the format of nltk's corpus, and nothing else on nltk.data.path."""
    folder = tmp_path / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    for name in nltk_wordnet_files():
        (folder / name).write_text("")
    (folder / "lexnames").write_text("00\tnoun.artifact\t1\n")
    (folder / "data.adj").write_text("  1 WordNet 3.0 Copyright\n")
    (folder / "data.noun").write_text("00000000 00 n 02 car 0 auto 0 000 | a vehicle\n")
    (folder / "index.noun").write_text("auto n 1 0 1 0 00000000\ncar n 1 0 1 0 00000000\n")
    (folder / "index.sense").write_text("auto%1:00:00:: 00000000 1 0\ncar%1:00:00:: 00000000 1 0\n")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    nltk_wordnet._unload()
    yield folder
    nltk_wordnet._unload()


@pytest.fixture
def no_wordnet(tmp_path, monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    nltk_wordnet._unload()


def nltk_wordnet_files():
    kinds = ("adj", "adv", "noun", "verb")
    tables = [f"{table}.{kind}" for table in ("index", "data") for kind in kinds]
    return ["cntlist.rev", *tables, *(f"{kind}.exc" for kind in kinds)]


@pytest.mark.parametrize(
    ("reference", "response", "expected"),
    [
        # 6 matches in 1 chunk: 1 - 0.5 / 6^3
        ("the cat sat on the mat", "The cat sat on the mat", 0.9976851852),
        # P = R = 2/3, 2 chunks of 2 matches: 2/3 * (1 - 0.5)
        ("the cat sat", "the dog sat", 1 / 3),
        # P = 1, R = 1/2: F = 0.5 / (0.9 + 0.05); 1 chunk of 2 matches: 1 - 0.5 / 8
        ("a b c d", "a b", 0.4934210526),
        # all three match, the verb by its stem: 1 - 0.5 / 27
        ("he walks home", "he walked home", 0.9814814815),
        ("yes", "no", 0.0),
    ],
)
def test_by_hand(reference, response, expected):
    assert meteor(reference, response, None) == pytest.approx(expected, abs=1e-9)


def test_synonyms_by_hand():
    reference, response = "my auto is red", "my car is red"
    assert meteor(reference, response, FakeWordNet()) == pytest.approx(1 - 0.5 / 4**3)
    # without: P = R = 3/4, 2 chunks of 3 matches
    assert meteor(reference, response, None) == pytest.approx(0.75 * (1 - 0.5 * (2 / 3) ** 3))


@pytest.mark.parametrize(("wordnet", "synonyms"), [(None, {}), (FakeWordNet(), SYNONYMS)])
def test_equals_slow_implementation(wordnet, synonyms):
    for reference, response in random_pairs(400):
        expected = slow_meteor(reference, response, synonyms)
        assert meteor(reference, response, wordnet) == pytest.approx(expected, abs=1e-12), (reference, response)


def test_cached_stemmer_gives_identical_scores():
    for reference, response in random_pairs(200):
        uncached = meteor_score([reference.split()], response.split(), stemmer=PorterStemmer(), wordnet=NoWordNet())
        assert meteor(reference, response, None) == uncached
        assert meteor(reference, response, None) == uncached


@pytest.mark.parametrize(("reference", "response"), [("hello .", ""), ("hello .", "  "), ("", "hello ."), ("", "")])
def test_empty_text_scores_zero(reference, response):
    assert meteor(reference, response, None) == 0.0


def test_reward_scores_each_response_against_its_own_reference():
    pairs = [("the cat sat", "the dog sat"), ("yes", "no"), ("a b c d", "a b")]
    dialogues = [Dialogue(["Hi ."], response, reference) for reference, response in pairs]
    reward = Meteor(meteor_wordnet="off")
    assert reward(dialogues) == pytest.approx([1 / 3, 0.0, 0.4934210526])
    assert reward([]) == []
    assert reward.needs == ("reference",)


def test_missing_reference_is_the_users_error():
    with pytest.raises(UserError, match=r"'meteor_exact_stem' needs a reference reply.*1 of 2.*number 1"):
        Meteor("off")([Dialogue(["Hi ."], "yes", "yes"), Dialogue(["Hi ."], "yes")])


@pytest.mark.parametrize("setting", ["auto", "require"])
def test_wordnet_on_this_machine_is_used(wordnet_folder, caplog, setting):
    caplog.set_level(logging.INFO)
    reward = Meteor(setting)
    assert reward.name == "meteor"
    assert "METEOR with WordNet" in caplog.text
    scores = reward([Dialogue(["Hi ."], "my car is red", "my auto is red")])
    assert scores == pytest.approx([1 - 0.5 / 4**3])


@pytest.mark.parametrize("setting", ["off", False])  # PyYAML reads an unquoted off as False
def test_off_leaves_wordnet_out(wordnet_folder, setting):
    assert load_wordnet(setting) is None
    assert Meteor(setting).name == "meteor_exact_stem"


def test_without_wordnet(no_wordnet, caplog):
    caplog.set_level(logging.INFO)
    assert Meteor().name == "meteor_exact_stem"
    assert "METEOR without WordNet (meteor_exact_stem)" in caplog.text
    with pytest.raises(UserError, match=r"python -m nltk\.downloader wordnet"):
        Meteor("require")


@pytest.mark.parametrize("setting", ["auto", "require"])
def test_broken_wordnet_is_no_silent_change_of_metric(wordnet_folder, setting):
    (wordnet_folder / "lexnames").unlink()
    with pytest.raises(UserError, match=r"on this machine but cannot be read"):
        Meteor(setting)


@pytest.mark.parametrize("setting", ["on", True, None, "Auto"])
def test_other_setting_names_the_three(setting):
    with pytest.raises(UserError, match=r"reward_class\.args\.meteor_wordnet.*auto, require, off"):
        Meteor(setting)


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [("a b c", "d e f", 0.0), ("a", "b c d e", -0.75), ("a b c d", "e", -0.75), ("", "a b", -1.0), ("", "", 0.0)],
)
def test_length_match(response, reference, expected):
    reward = LengthMatch()
    assert reward([Dialogue(["Hi ."], response, reference)]) == [expected]
    assert reward.name == "length_match"
    assert reward.needs == ("reference",)
