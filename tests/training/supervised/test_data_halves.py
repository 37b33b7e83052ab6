import json

import pytest

from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.data_halves import of_half
from tests.parts import tiny


def test_the_halves_share_no_dialogue_and_leave_none_out(tmp_path):
    """tiny data: no dialogue repeats another one, so that each is in one of the halves."""
    data, said = str(tiny.write_data(tmp_path, 25)), []
    for drop in (False, True):
        pairs = load_prompts(data, "train", drop_overlap=drop)
        whole, nothing = of_half(pairs, "all", data, said.append)
        assert (whole, nothing, said) == (pairs, None, [])
        (reward, first), (judge, second) = (of_half(pairs, half, data, said.append) for half in ("reward", "judge"))
        numbers, others = ({pair.meta["dialogue"] for pair in half} for half in (reward, judge))
        assert not numbers & others
        assert numbers | others == {pair.meta["dialogue"] for pair in pairs}
        assert len(numbers) > 5 < len(others)
        assert (first.part, second.part, first.assignment) == ("reward", "judge", second.assignment)
        assert said.pop() == f"train: {len(judge)} of them are in the judge's half of the dialogues"
        said.clear()


def test_an_empty_half_is_the_users_error(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"dialog": ["Hi .", "Hello ."], "act": [1, 1]}) + "\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"half: no pair of turns of '.*' is in the judge's half of the train split; use half: all"
    ):
        of_half(load_prompts(str(path), "train"), "judge", str(path), print)
