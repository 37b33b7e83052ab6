"""What a run has whose environment pays for everything."""

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import NoReward


def test_every_dialogue_is_worth_nothing():
    assert NoReward()([Dialogue(["Hi"], response="Ho")] * 3) == [0.0, 0.0, 0.0]


def test_a_run_with_an_environment_has_it_by_default():
    config = Config(model_path="m", environment={"id": "restaurant"})
    assert (config.reward_class.id, config.env.args.data_path) == ("NoReward", "")
    both = {"reward_class": {"id": "LengthMatch"}, "env": {"args": {"tokenizer_path": "t"}}}
    config = Config(model_path="m", environment={"id": "restaurant"}, **both)
    assert (config.reward_class.id, config.env.args.tokenizer_path) == ("LengthMatch", "t")
