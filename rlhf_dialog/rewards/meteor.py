"""METEOR of a response against its reference, computed by nltk with a cached stemmer."""

import logging
from functools import cache, lru_cache
from typing import Any

from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.registry import RewardFactory, nearest
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.needs import references

logger = logging.getLogger(__name__)

WORDNET_SETTINGS = ("auto", "require", "off")


@RewardFactory.register("Meteor")
class Meteor(BaseReward):
    """METEOR in [0, 1] (Lavie & Agarwal 2007, as in nltk: alpha 0.9, beta 3, gamma 0.5); an empty response gets 0.

    `meteor_wordnet`: `auto` uses WordNet when nltk's copy is on this machine, `require` stops without it, `off` goes
    without. Without WordNet there is no synonym stage: another metric, with its own name. Nothing is downloaded.
    """

    needs = ("reference",)

    def __init__(self, meteor_wordnet: str | bool = "auto"):
        self.wordnet = load_wordnet(meteor_wordnet)
        logger.info(
            "METEOR %s WordNet (%s)", "without" if self.wordnet is None else "with", meteor_variant(self.wordnet)
        )

    @property
    def name(self) -> str:
        """`meteor` with WordNet, `meteor_exact_stem` without."""
        return meteor_variant(self.wordnet)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number in [0, 1] for each dialogue. Raises UserError when one has no reference."""
        pairs = zip(dialogues, references(dialogues, self.name), strict=True)
        return [meteor(reference, dialogue.response, self.wordnet) for dialogue, reference in pairs]


def meteor(reference: str, response: str, wordnet: Any | None) -> float:
    """METEOR of two texts; `wordnet` is what `load_wordnet` returned: anything with `synsets(word)`, or None."""
    from nltk.tokenize import word_tokenize
    from nltk.translate.meteor_score import meteor_score

    # preserve_line: no splitting into sentences, which would need nltk's punkt data
    reference_words = word_tokenize(reference.lower(), preserve_line=True)
    response_words = word_tokenize(response.lower(), preserve_line=True)
    return meteor_score(
        [reference_words],
        response_words,
        stemmer=_stemmer(),
        wordnet=_NoWordNet() if wordnet is None else wordnet,
        alpha=0.9,
        beta=3.0,
        gamma=0.5,
    )


def meteor_variant(wordnet: Any | None) -> str:
    """The name under which a METEOR computed with this `wordnet` is reported."""
    return "meteor_exact_stem" if wordnet is None else "meteor"


def load_wordnet(meteor_wordnet: str | bool) -> Any | None:
    """nltk's WordNet reader, or None to go without; looks only in the folders of `nltk.data.path`.

    Raises UserError for another setting than auto, require and off; when `require` finds none; and when the copy
    that is there cannot be read.
    """
    if meteor_wordnet is False:  # how PyYAML reads an unquoted off
        meteor_wordnet = "off"
    if meteor_wordnet not in WORDNET_SETTINGS:
        raise UserError(
            f"reward_class.args.meteor_wordnet: {meteor_wordnet!r} is not one of {', '.join(WORDNET_SETTINGS)}"
            f"{nearest(str(meteor_wordnet), WORDNET_SETTINGS)}"
        )
    if meteor_wordnet == "off":
        return None
    import nltk.data
    from nltk.corpus import wordnet
    from nltk.corpus.reader.wordnet import WordNetError

    try:
        wordnet.ensure_loaded()
    except LookupError as error:
        if meteor_wordnet == "auto":
            return None
        raise UserError(
            "reward_class.args.meteor_wordnet: require, but nltk finds no WordNet in "
            f"{', '.join(nltk.data.path)}. Run `python -m nltk.downloader wordnet`, or set it to auto."
        ) from error
    except (OSError, ValueError, AssertionError, WordNetError) as error:
        raise UserError(
            f"reward_class.args.meteor_wordnet: {meteor_wordnet}: nltk's WordNet is on this machine but cannot be "
            f"read: {error}. Run `python -m nltk.downloader wordnet`, or set it to off."
        ) from error
    return wordnet


class _NoWordNet:
    def synsets(self, word: str) -> list[Any]:
        return []


class _CachedStemmer:
    """nltk's Porter stemmer, which is most of METEOR's cost, with a memory of the words it has seen."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem = lru_cache(maxsize=100_000)(PorterStemmer().stem)


@cache
def _stemmer() -> _CachedStemmer:
    return _CachedStemmer()
