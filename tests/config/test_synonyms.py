"""Keys of TRL, OpenRLHF and DeepSpeed-Chat: each gets the key here, or one word."""

import pytest

from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.problems import walk
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.synonyms import NO_EFFECT, TABLE, WORDS, hint
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.settings import SupervisedKeys
from tests.parts.yaml_files import SMALL, message

KEYS = [key for key, _ in walk(Config)]


def test_every_key_of_the_table_exists_and_a_name_is_in_one_row():
    ours = [name[:-1] for name in TABLE.split() if name.endswith(":")]
    theirs = [name for name in TABLE.split() if not name.endswith(":")]
    assert set(ours) - set(KEYS) == set(WORDS)
    assert (len(ours), len(theirs)) == (len(set(ours)), len(set(theirs)))
    assert not set(theirs) & {*KEYS, *NO_EFFECT}


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("learning_rate", "; did you mean 'lr'?"),
        ("response_length", "; did you mean 'max_new_tokens'?"),
        ("cliprange", "; did you mean 'clip_param'?"),
        ("num_ppo_epochs", "; did you mean 'ppo_epoch'?"),
        ("init_kl_coef", "; did you mean 'kl_coef'?"),
        ("dataset_name", "; did you mean 'env.args.data_path'?"),
        ("use_vllm", "; unsupported"),
        ("world_size", "; launcher"),
        ("load_checkpoint", "; --resume"),
        ("disable_dropout", "; automatic"),
        ("gama", "; did you mean 'gamma'?"),
        ("clip_parm", "; did you mean 'clip_param'?"),
        ("xyzzy", ""),
    ],
)
def test_a_name_of_another_library_wins_over_the_nearest_name(write, key, advice):
    assert message(write(f"{SMALL}{key}: 1\n")).endswith(f"\n  {key}: unknown key{advice}")
    if key in TABLE:
        nested = SMALL.replace("data_path: d", f"data_path: d, {key}: 1")
        assert message(write(nested)).endswith(f"\n  env.args.{key}: unknown key{advice}")


def test_a_command_with_other_keys_is_not_told_of_ours():
    assert hint("learning_rate", ["learning_rat", "size"]) == ""
    with pytest.raises(UserError, match=r"num_train_epochs: unknown key$"):
        load_settings(SupervisedKeys, None, {"num_train_epochs": 3})
