"""The built-in rewards; importing this package registers them under their class names."""

from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import CompositeReward, build_reward
from rlhf_dialog.rewards.errors import RewardError
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.rewards.meteor import Meteor
from rlhf_dialog.rewards.nlp_reward import NLPReward
from rlhf_dialog.rewards.remote import RemoteReward
from rlhf_dialog.rewards.scoring import PartScore, Scorer, Scores, scored

__all__ = [
    "BaseReward",
    "CompositeReward",
    "Intent",
    "LengthMatch",
    "Meteor",
    "NLPReward",
    "PartScore",
    "RemoteReward",
    "RewardError",
    "Scorer",
    "Scores",
    "build_reward",
    "scored",
]
