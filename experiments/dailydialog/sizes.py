"""What a run of each size changes in the shipped YAMLs, what it trains, and what it measures."""

from dataclasses import dataclass, field
from typing import Any

Keys = dict[str, Any]
SFT, RELEVANCE, ORDER, JUDGE, ACTS, PPO, CHAT = (
    f"{name}.yaml"
    for name in (
        "sft_dailydialog_small",
        "relevance_dailydialog_small",
        "relevance_order_dailydialog_small",
        "relevance_judge_dailydialog_small",
        "judge_dailydialog_small",
        "dailydialog_relevance_small",
        "chat_smollm2",
    )
)
STEP, FEWEST = 10_000, 40_000  # tokens of PPO
SMOLLM2, MINILM = "smollm2", "minilm"  # folders of --fetched
TEMPERATURES = (1.0, 0.7)
COUNTS = (2, 4, 8)  # of the best of n
BIAS_RATES = (0.05, 0.15)  # of a learned bias, which has fewer iterations here than at the quickstart
SAID = (
    "true_replies",
    "random_reference",
    "random_train_reply",
    "nearest_train_reply",
    "repeat_last_turn",
    "constant_reply",
    "long_constant_reply",
)
START, BEST_SFT, DPO, BEST, MATCHED = "start", "sft_on_best", "dpo", "best_of", "matched"
SHIFT, LEARNED = "mean_logit_shift", "learned_bias"
RLOO = "rloo"  # the estimator with three seeds
CHOSEN = "chosen.json"


@dataclass(frozen=True)
class Agent:
    """A run of PPO: its row in the tables, the YAML, and what is changed there. `start`: the model; None: the SFT model."""

    name: str
    seed: int
    yaml: str = PPO
    keys: Keys = field(default_factory=dict)
    start: str | None = None

    @property
    def folder(self) -> str:
        return f"{self.name}_{self.seed}"


@dataclass(frozen=True)
class Size:
    """How large everything is; `small`: what is changed in the YAML of each stage, beside what the stage itself decides."""

    agents: tuple[Agent, ...]
    minutes: float | None  # of all runs of PPO, two side by side, which decide their tokens; None: all tokens
    tokens: int  # of a run of PPO, at most
    test_prompts: int | None  # of whole dialogues; None: all
    validation_prompts: int
    pretrained_prompts: int  # that the pretrained judges read
    draws: int  # of start and agents
    bias_prompts: int
    bias_tokens: int = 100_000  # that a learned bias generates with each rate
    measured_steps: int = 20  # of the supervised trainings that `estimate` measures
    measured_prompts: int = 64
    audit: tuple[str, ...] = ()
    small: dict[str, Keys] = field(default_factory=dict)


def agents_of(estimators: tuple[str, ...]) -> tuple[Agent, ...]:
    """Three seeds of rloo, and seed 0 of the others."""
    return (
        *(Agent(RLOO, seed) for seed in (0, 1, 2)),
        *(Agent(name, 0, keys=ESTIMATORS[name]) for name in estimators),
    )


ESTIMATORS: dict[str, Keys] = {
    "gae": {
        "advantage_estimator": "gae",
        "num_responses_per_prompt": None,
        "gae_lambda": 1.0,  # the score comes at the end, and a new critic should not decide alone
        "critic_lr": 1e-3,
        "critic_warmup": 3,
    },
    "grpo": {"advantage_estimator": "grpo"},
    "reinforce_pp": {"advantage_estimator": "reinforce_pp", "num_responses_per_prompt": None},
}
SHORT = Size(
    agents=agents_of(("gae",)),
    minutes=40,
    tokens=200_000,
    test_prompts=1500,
    validation_prompts=500,
    pretrained_prompts=200,
    draws=4,
    bias_prompts=256,
    audit=("--max_prompts", "50"),
    small={"sft": {"evals": 4}},
)
FULL = Size(
    agents=(
        *agents_of(("gae", "grpo", "reinforce_pp")),
        Agent("rloo_smollm2", 0, CHAT, {"max_iterations": None, "system_prompt": None}, SMOLLM2),
    ),
    minutes=None,
    tokens=330_000,
    test_prompts=None,
    validation_prompts=500,
    pretrained_prompts=200,
    draws=4,
    bias_prompts=256,
    audit=("--max_prompts", "50"),
    small={"sft": {"evals": 4}},
)
_SHALLOW: Keys = {"vocab_size": 400, "use_amp": False, "epochs": 1}
_NARROW: Keys = {**_SHALLOW, "hidden_size": 8, "batch_size": 32}
TINY = Size(
    agents=(Agent(RLOO, 0), Agent(RLOO, 1), Agent("gae", 0, keys=ESTIMATORS["gae"])),
    minutes=None,
    tokens=600,
    test_prompts=60,
    validation_prompts=30,
    pretrained_prompts=20,
    draws=2,
    bias_prompts=16,
    bias_tokens=300,
    measured_steps=3,
    measured_prompts=16,
    audit=("--max_prompts", "20", "--search_prompts", "10", "--search_replies", "100", "--search_rounds", "4"),
    small={
        "sft": {**_SHALLOW, "n_layer": 1, "n_embd": 16, "n_head": 2, "evals": 1, "max_eval_prompts": 20},
        "relevance": {**_NARROW, "members": 1, "bank_size": 32},
        "relevance_order": {**_NARROW, "bank_size": 32},
        "judge_convolution": _NARROW,
        "judge_bag": _NARROW,
        "act_judge": {**_SHALLOW, "hidden_size": 16, "num_heads": 2, "num_layers": 1},
        "ppo": {
            "rollout_batch_size": 16,
            "num_responses_per_prompt": 4,
            "eval_interval": 0,
            "save_interval": 1,
            "max_new_tokens": 8,
        },
        "best_of_4": {"batch_size": 8},
        "dpo": {"batch_size": 8},
    },
)
SIZES = {"short": SHORT, "full": FULL, "tiny": TINY}
