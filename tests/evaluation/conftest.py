"""Fixtures of tests/parts for what meets a stranger's folder."""

from evaluations import agent, classifier, data, prompts, runs, script  # noqa: F401
from poisoned import folder, went_off  # noqa: F401
from servers import no_proxy  # noqa: F401
