"""The nearest training prompt, on texts whose order is known by hand."""

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.retrieval_baseline import nearest_replies

TRAINING = [
    Dialogue(["Where is the pool?"], reference="In the garden."),
    Dialogue(["How much is the pool?"], reference="Free."),
    Dialogue(["Where is the bar?"], reference="On the left."),
]


def replies(*texts: str) -> list[str]:
    return nearest_replies([Dialogue([text]) for text in texts], TRAINING)


def test_rare_words_count_more_than_common_ones():
    assert replies("where's the bar, please", "how much for the pool?", "WHERE is the pool?") == [
        "On the left.",
        "Free.",
        "In the garden.",
    ]


def test_only_the_last_turn_counts():
    asked = Dialogue(["Where is the bar?", "How much is it?"])
    assert nearest_replies([asked], TRAINING) == ["Free."]
