"""Fixtures of tests/parts for rewards; a WordNet of two words, and none."""

import nltk.data
import pytest
from nltk.corpus import wordnet as nltk_wordnet

from tests.parts.classifiers import pair_folder  # noqa: F401
from tests.parts.given import own_rewards  # noqa: F401
from tests.parts.judges import judges  # noqa: F401
from tests.parts.prices import price  # noqa: F401
from tests.parts.servers import no_proxy  # noqa: F401


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
