"""The environments that a YAML may name without a line of Python."""

import rlhf_dialog.environments.built_in
from rlhf_dialog.config.registry import EnvironmentFactory


def test_they_are_registered_under_their_names():
    built_in = rlhf_dialog.environments.built_in
    names = {"corpus": built_in.CorpusUser, "language_model_user": built_in.LMUser}
    assert names.items() <= EnvironmentFactory.classes.items()
