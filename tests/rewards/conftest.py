"""Fixtures of tests/parts for rewards."""

from tests.parts.classifiers import pair_folder  # noqa: F401
from tests.parts.given import own_rewards  # noqa: F401
from tests.parts.judges import judges  # noqa: F401
from tests.parts.prices import price  # noqa: F401
from tests.parts.servers import no_proxy  # noqa: F401
from tests.parts.wordnets import no_wordnet, wordnet_folder  # noqa: F401
