"""How an environment that a YAML names is built."""

import pytest

from rlhf_dialog.environments.built_in import build_environment
from rlhf_dialog.errors import UserError


def test_what_cannot_be_built_is_named():
    with pytest.raises(UserError, match="environment: unknown environment 'nobody'"):
        build_environment("nobody", {})
    with pytest.raises(UserError, match="max_turns is 0"):
        build_environment("restaurant", {"max_turns": 0})
