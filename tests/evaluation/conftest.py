"""Fixtures of tests/parts for what meets a stranger's folder."""

from tests.parts.evaluations import agent, classifier, data, prompts, runs, script  # noqa: F401
from tests.parts.poisoned import folder, went_off  # noqa: F401
from tests.parts.servers import no_proxy  # noqa: F401
