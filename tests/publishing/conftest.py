from evaluations import agent, classifier, data, prompts, runs  # noqa: F401
from hub_server import hub_server  # noqa: F401
