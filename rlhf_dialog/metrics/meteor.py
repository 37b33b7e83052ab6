"""METEOR of a response against its references, computed by nltk with a cached stemmer."""

from collections.abc import Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

from rlhf_dialog.errors import UserError, nearest

WORDNET_SETTINGS = ("auto", "require", "off")
NO_WORDNET: Any = SimpleNamespace(synsets=lambda word: [])


def meteor(references: str | Sequence[str], response: str, wordnet: Any | None) -> float:
    """METEOR in [0, 1] of a text against its best reference (Lavie & Agarwal 2007, alpha 0.9, beta 3, gamma 0.5).

    `wordnet` is what `load_wordnet` returned: anything with `synsets(word)`, or None. An empty response gets 0.
    """
    from nltk.tokenize import word_tokenize
    from nltk.translate.meteor_score import meteor_score

    # preserve_line: no splitting into sentences, which would need nltk's punkt data
    texts = [references] if isinstance(references, str) else references
    return meteor_score(
        [word_tokenize(text.lower(), preserve_line=True) for text in texts],
        word_tokenize(response.lower(), preserve_line=True),
        stemmer=_stemmer(),
        wordnet=NO_WORDNET if wordnet is None else wordnet,
        alpha=0.9,
        beta=3.0,
        gamma=0.5,
    )


def meteor_variant(wordnet: Any | None) -> str:
    """The name under which a METEOR computed with this `wordnet` is reported."""
    return "meteor_exact_stem" if wordnet is None else "meteor"


def load_wordnet(meteor_wordnet: str | bool) -> Any | None:
    """nltk's WordNet reader, or None to go without; looks only in the folders of `nltk.data.path`.

    Raises UserError for a setting other than auto, require and off; when `require` finds no WordNet; and when the copy
    on this machine cannot be read.
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


@cache
def _stemmer() -> Any:
    """nltk's Porter stemmer, which is most of METEOR's cost, with a memory of the words it has seen."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(maxsize=100_000)(PorterStemmer().stem))
