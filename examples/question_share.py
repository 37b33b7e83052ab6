"""Metrics of your own, logged in each iteration beside those of the default: how many responses ask something.

python train_ppo.py --config quickstart.yaml --register examples/question_share.py --vec_info_class.id QuestionShare
"""

from rlhf_dialog import NLPVecInfo, Rollout, VecInfoFactory


@VecInfoFactory.register("QuestionShare")
class QuestionShare(NLPVecInfo):
    """What NLPVecInfo logs, and `response/questions`: the share of the responses with a question mark."""

    def __call__(self, rollout: Rollout) -> dict[str, float]:
        asked = ["?" in dialogue.response for dialogue in rollout.dialogues]
        return {**super().__call__(rollout), "response/questions": sum(asked) / len(asked)}
