from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.own_metrics import OwnMetric
from rlhf_dialog.rewards.scoring import score_dialogues

DIALOGUES = [Dialogue(["a"], "why ?"), Dialogue(["a"], "so .")]


def test_a_function_is_asked_for_one_number_each():
    metric = OwnMetric("questions", lambda dialogues: [float("?" in dialogue.response) for dialogue in dialogues])
    assert score_dialogues(metric, DIALOGUES).total == [1.0, 0.0]
