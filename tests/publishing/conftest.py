from tests.parts.evaluations import agent, classifier, data, prompts, runs  # noqa: F401
from tests.parts.hub_server import hub_server  # noqa: F401
