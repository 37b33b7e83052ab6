"""The keys of the stages are known without torch, and every shipped YAML of a stage is one of them."""

import pytest

from rlhf_dialog.config.loading import load_settings, shipped_folder
from rlhf_dialog.training.supervised import settings
from tests.parts.processes import run_python


def test_no_library_is_loaded_for_the_keys():
    program = (
        "import sys, rlhf_dialog.training.supervised.settings; print({'torch', 'transformers', 'trl'} & {*sys.modules})"
    )
    assert run_python("-c", program).stdout == "set()\n"


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("sft_quickstart", settings.SFTConfig),
        ("intent_quickstart", settings.IntentConfig),
        ("preference_quickstart", settings.PreferenceConfig),
        ("relevance_dailydialog_small", settings.RelevanceConfig),
    ],
)
def test_a_shipped_yaml_has_the_keys_of_its_stage(name, schema):
    path = shipped_folder("configs") / f"{name}.yaml"
    assert load_settings(schema, path).output
    with pytest.raises(Exception, match="lrr: unknown key"):
        load_settings(schema, path, {"lrr": 1})
