import json

import pytest

from rlhf_dialog.data.learned_half import LearnedHalf, are_apart, learned_half


def test_only_the_two_halves_of_one_assignment_are_apart():
    reward, judge, other = LearnedHalf("a", "reward"), LearnedHalf("a", "judge"), LearnedHalf("b", "judge")
    assert are_apart(reward, judge)
    assert are_apart(judge, reward)
    assert not any(are_apart(reward, one) for one in (reward, other, LearnedHalf("a", "all"), None))
    assert not are_apart(None, reward)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"learned_half": null}',
        '{"learned_half": 3}',
        '{"learned_half": {"part": "judge"}}',
        '{"learned_half": {"part": "judge", "assignment": "a", "more": 1}}',
        '{"learned_half": {"part": ["judge"], "assignment": {}}}',
        '{"settings": {"data_path": "d", "half": "odd"}}',
        "[" * 10**5,
    ],
)
def test_what_a_report_does_not_say_is_not_known(content, tmp_path):
    (tmp_path / "report.json").write_text(content, encoding="utf-8")
    assert learned_half(tmp_path) is None
    assert learned_half(tmp_path / "nowhere") is None


def test_a_report_that_says_it(tmp_path):
    document = {"learned_half": {"assignment": "a", "part": "judge"}, "settings": {}}
    (tmp_path / "report.json").write_text(json.dumps(document), encoding="utf-8")
    assert learned_half(tmp_path) == LearnedHalf("a", "judge")
