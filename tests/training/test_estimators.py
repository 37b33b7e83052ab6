"""The functions of the estimators: each one that a YAML can name has one."""

from rlhf_dialog.config.estimators import ESTIMATORS
from rlhf_dialog.training.estimators import ADVANTAGES


def test_each_estimator_of_the_configuration_has_its_function():
    assert {name: function.__name__ for name, function in ADVANTAGES.items()} == {
        name: f"{name}_advantages" for name in ESTIMATORS
    }
