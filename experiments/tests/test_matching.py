"""The temperature at which the start has a wanted distinct-2, where it is known by hand."""

import pytest

from experiments import matching
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.generation import Sampling


def test_the_matched_temperature_has_the_wanted_distinct_2(monkeypatch):
    """With a distinct-2 of half the temperature, 0.4 is met at temperature 0.8; 0.9 and 0.1 nowhere."""
    tried = []

    def replies(start, prompts, sampling, *_):
        assert (start, len(prompts), sampling.greedy) == ("start", 1500, False)
        tried.append(sampling.temperature)
        return Replies([Dialogue(["a"], response=str(sampling.temperature))], [1])

    monkeypatch.setattr(matching, "generate_replies", replies)
    monkeypatch.setattr(matching, "distinct_2", lambda texts: float(texts[0]) / 2)
    asked = "start", [Dialogue(["a"])] * 1500, Sampling(greedy=True)
    match = matching.match_distinct_2(*asked, 0.4)
    assert match.distinct_2 == pytest.approx(0.4, abs=0.001)
    assert match.temperature == pytest.approx(0.8, abs=0.002)
    assert match.answers.dialogues[0].response == str(
        match.temperature
    )  # those that were measured, not drawn once more
    assert len(tried) == len(set(tried)) <= 14
    tried.clear()
    matching.match_distinct_2(*asked, 0.4, steps=3)
    assert tried == [0.3, 1.5, 0.9, 0.6, 0.75]
    assert matching.match_distinct_2(*asked, 0.9) is matching.match_distinct_2(*asked, 0.1) is None
