"""The built-in rewards; importing this package registers them under their class names.

- **A reward never fails silently.** An exception, a missing value or a NaN ends the run, with the reward's name, file
  and line. `on_reward_error: skip` drops and counts the episodes without a score; an exception still ends the run.
- **A reward declares what it is made of** (`BaseReward.children`, `frozen_models`, `model_args`), and its
  state (`begin_scoring`, `metrics`, `state_dict`, `load_state_dict`).
- **Rewards in plain Python, or on a server, score in a thread** while the reference model computes
  (`Scorer.begin`).
- **A reward model reads text, with its own tokenizer** (`scalar_model`), in the form that it was
  trained on. Rows are padded on the right, so that no score depends on its batch.
- **Relevance is a margin over a stored bank** (`relevance`), so that no constant response is worth more than 0 on average.
"""

from rlhf_dialog.rewards.base import BaseReward, NoScore, RewardError
from rlhf_dialog.rewards.composite import CompositeReward, NoReward, build_reward
from rlhf_dialog.rewards.copy_price import CopyPrice
from rlhf_dialog.rewards.encoder_similarity import EncoderSimilarity
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.judge import JudgeReward
from rlhf_dialog.rewards.length import LengthHold, LengthMatch
from rlhf_dialog.rewards.likelihood import LikelihoodPrice
from rlhf_dialog.rewards.meteor import Meteor
from rlhf_dialog.rewards.nlp_reward import NLPReward
from rlhf_dialog.rewards.relevance import RelevanceReward
from rlhf_dialog.rewards.remote import RemoteReward
from rlhf_dialog.rewards.reward_model import RewardModel
from rlhf_dialog.rewards.scoring import PartScore, Scorer, Scores

__all__ = [
    "BaseReward",
    "CompositeReward",
    "CopyPrice",
    "EncoderSimilarity",
    "Intent",
    "JudgeReward",
    "LengthHold",
    "LengthMatch",
    "LikelihoodPrice",
    "Meteor",
    "NLPReward",
    "NoReward",
    "NoScore",
    "PartScore",
    "RelevanceReward",
    "RemoteReward",
    "RewardError",
    "RewardModel",
    "Scorer",
    "Scores",
    "build_reward",
]
