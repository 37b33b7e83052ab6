"""How rewards and judges are asked, and what is counted."""

import math

from rlhf_dialog.evaluation.audit import audit
from rlhf_dialog.evaluation.audit.audit import AuditScorer
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules
from tests.parts.audits import Rule, Summed, talks

LETTERS = Rule(lambda d: len(d.response), "letters")


def payer(reward, judges=None, skip=False):
    return AuditScorer(Scorer(reward, ScoringRules(skip_unscored=skip)), judges or {})


def test_a_prompt_without_a_text_has_no_number():
    reward = Summed((2.0, LETTERS), (1.0, Rule(lambda d: 1.0, "one")))
    paid = payer(reward, {"judge": LETTERS}).score_texts(talks(3), ["ab", None, ""])
    assert paid.score[[0, 2]].tolist() == [5.0, 1.0]
    assert paid.parts["letters"][[0, 2]].tolist() == [4.0, 0.0]
    assert paid.judges["judge"][[0, 2]].tolist() == [2.0, 0.0]
    assert all(math.isnan(one[1]) for one in (paid.score, *paid.parts.values(), *paid.judges.values()))
    assert paid.select(slice(0, 1)).parts["one"].tolist() == [1.0]


def test_a_missing_score_is_not_a_number_where_the_run_skips_it():
    picky = Rule(lambda d: math.inf if d.response == "x" else 1.0)
    paid = payer(picky, skip=True).score_texts(talks(2), ["x", "y"])
    assert math.isnan(paid.score[0])
    assert paid.score[1] == 1.0


def test_calls_are_of_a_bounded_size_and_keep_the_order(monkeypatch):
    monkeypatch.setattr(audit, "CALL", 4)
    sizes = []

    class Counting(Rule):
        def __call__(self, dialogues):
            sizes.append(len(dialogues))
            return super().__call__(dialogues)

    asking = payer(Counting(lambda d: int(d.response)))
    assert asking.score_texts(talks(10), [str(i) for i in range(10)]).score.tolist() == list(range(10))
    assert sizes == [4, 4, 2]
    assert asking.asked == 10
