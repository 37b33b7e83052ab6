"""The configurations that ship, and the schema of each."""

import rlhf_dialog.environments
import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  so that reward ids and arguments are checked
from rlhf_dialog.config.schema import Config, Settings
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig
from rlhf_dialog.training.supervised.settings import IntentConfig, PreferenceConfig, RelevanceConfig, SFTConfig
from tests.parts.processes import ROOT

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.y*ml") if not path.stem.startswith("month"))
SCHEMAS: dict[str, type[Settings]] = {  # by the name, or its first word
    "sft": SFTConfig,
    "intent": IntentConfig,
    "judge": IntentConfig,
    "preference": PreferenceConfig,
    "relevance": RelevanceConfig,
    "restaurant": PolicyConfig,
    "restaurant_human": PolicyConfig,
    "restaurant_dialogue": Config,
    "actions": PolicyConfig,
    "cambridge": PolicyConfig,
    "multiwoz": PolicyConfig,
}
