"""METEOR as a reward, computed by nltk with a cached stemmer."""

import logging
from collections.abc import Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ARGS, BaseReward, choice, reference_lists, walk

logger = logging.getLogger(__name__)
WORDNET_SETTINGS = ("auto", "require", "off")
NO_WORDNET: Any = SimpleNamespace(synsets=lambda word: [])


@RewardFactory.register("Meteor")
class Meteor(BaseReward):
    """METEOR in [0, 1] against the best of a prompt's references; an empty response gets 0.

    `meteor_wordnet`: `auto` uses WordNet when nltk's copy is on this machine, `require` raises an error without it, `off`
    does not use it: then there is no synonym stage, and the metric has another name. Nothing is downloaded.
    """

    needs = ("reference",)

    def __init__(self, meteor_wordnet: str | bool = "auto"):
        self.wordnet = load_wordnet(meteor_wordnet)
        logger.info("METEOR %s WordNet (%s)", "without" if self.wordnet is None else "with", self.name)

    @property
    def name(self) -> str:
        """`meteor` with WordNet, `meteor_exact_stem` without."""
        return meteor_variant(self.wordnet)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number in [0, 1] for each dialogue. Raises UserError when one has no reference."""
        pairs = zip(dialogues, reference_lists(dialogues, self), strict=True)
        return [meteor(references, dialogue.response, self.wordnet) for dialogue, references in pairs]


def reward_wordnet(reward: BaseReward | None) -> Any:
    """The WordNet of the first Meteor in a reward, at any depth (None: not used); without a Meteor, that of this machine."""
    found = next((one for one in walk(reward) if isinstance(one, Meteor)), None) if reward else None
    return found.wordnet if found else load_wordnet("auto")


def meteor(references: Sequence[str], response: str, wordnet: Any | None) -> float:
    """METEOR in [0, 1] of a text against its best reference (Lavie & Agarwal 2007, alpha 0.9, beta 3, gamma 0.5).

    `wordnet` is what `load_wordnet` returned: anything with `synsets(word)`, or None. An empty response gets 0.
    """
    from nltk.tokenize import word_tokenize
    from nltk.translate.meteor_score import meteor_score

    # preserve_line: no splitting into sentences, which would need nltk's punkt data
    return meteor_score(
        [word_tokenize(text.lower(), preserve_line=True) for text in references],
        word_tokenize(response.lower(), preserve_line=True),
        stemmer=_stemmer(),
        wordnet=NO_WORDNET if wordnet is None else wordnet,
        alpha=0.9,
        beta=3.0,
        gamma=0.5,
    )


def meteor_variant(wordnet: Any | None) -> str:
    """The name of METEOR with this `wordnet`."""
    return "meteor_exact_stem" if wordnet is None else "meteor"


def load_wordnet(meteor_wordnet: str | bool) -> Any | None:
    """nltk's WordNet reader, or None to go without; looks only in the folders of `nltk.data.path`.

    Raises UserError for a setting other than auto, require and off, and when `require` finds no WordNet.
    """
    # PyYAML reads an unquoted off as False
    meteor_wordnet = choice("meteor_wordnet", "off" if meteor_wordnet is False else meteor_wordnet, WORDNET_SETTINGS)
    if meteor_wordnet == "off":
        return None
    import nltk.data
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError as error:
        if meteor_wordnet == "auto":
            return None
        raise UserError(
            f"{ARGS}.meteor_wordnet: require, but nltk finds no WordNet in "
            f"{', '.join(nltk.data.path)}. Run `python -m nltk.downloader wordnet`, or set it to auto."
        ) from error
    return wordnet


@cache
def _stemmer() -> Any:
    """nltk's Porter stemmer, which is most of METEOR's cost, with a memory of the words it has seen."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(maxsize=100_000)(PorterStemmer().stem))
