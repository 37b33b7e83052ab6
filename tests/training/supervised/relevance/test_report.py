import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.relevance import RelevanceReward
from rlhf_dialog.training.supervised.relevance.report import kinds_of_replies, markdown, measure
from tests.parts.relevance_models import save_letters

PAIRS = [
    Dialogue(turns, response=reply, meta={"dialogue": number})
    for number, (turns, reply) in enumerate([(["a b", "c"], "d"), (["e"], "f g"), (["h", "i j"], "k")])
]


def test_the_kinds_of_replies():
    found = {name: [said.response for said in some] for name, some in kinds_of_replies(PAIRS, seed=0).items()}
    assert found["true_reply"] == ["d", "f g", "k"]
    assert found["last_turn"] == ["c", "e", "i j"]
    assert found["turn_before_last"] == ["a b", "h"]
    assert (found["third_last_turn"], found["fourth_last_turn"]) == ([], [])
    assert sorted(found["random_reply"]) == ["d", "f g", "k"]
    assert all(a != b for a, b in zip(found["random_reply"], found["true_reply"], strict=True))
    assert found["empty_reply"] == ["", "", ""]


@pytest.mark.parametrize("architecture", ["bag", "cross_encoder"])
def test_the_report_is_what_the_reward_says(architecture, tmp_path):
    folder = save_letters(tmp_path, architecture)
    found = measure(folder, PAIRS, "cpu", seed=0)
    scores = RelevanceReward(folder)(PAIRS)
    assert found["reward"]["true_reply"]["mean"] == pytest.approx(sum(scores) / 3, abs=1e-5)
    assert (found["num_pairs"], found["num_dialogues"], found["bank"]) == (3, 3, 7)
    lines = markdown("validation", found).splitlines()
    assert lines[0] == "## validation: 3 prompts of 3 dialogues"
    assert len(lines) == 4 + 2 + 7
