"""Fixtures of tests/parts for rewards."""

from classifiers import pair_folder  # noqa: F401
from given import own_rewards  # noqa: F401
from judges import judges  # noqa: F401
from prices import price  # noqa: F401
from servers import no_proxy  # noqa: F401
from wordnets import no_wordnet, wordnet_folder  # noqa: F401
