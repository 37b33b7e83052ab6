"""What a run of each size changes in the shipped YAMLs, what it trains, and what it measures."""

from dataclasses import dataclass, field, replace
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
SEED_PPO, INTENT = "nlp_ppo.yaml", "intent_dailydialog_small.yaml"
SMOLLM2, MINILM, CHITCHAT = "smollm2", "minilm", "chitchat"  # folders of --fetched
MODEL = "model"  # what --model names
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
PREDICTED = "predicted"  # the best by a prediction of the score
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
class Training:
    """A supervised stage: its command, the shipped YAML, and what is changed there.

    `start`: the folder of --fetched that it begins with, or MODEL; None: from scratch. `data`: a folder of `Work.dialogues`;
    None: --data_path.
    """

    command: str
    yaml: str
    keys: Keys = field(default_factory=dict)
    start: str | None = None
    data: str | None = None


SUPERVISED = {
    "sft": Training("train-sft", SFT, {"patience": None, "epochs": 2}),
    "relevance": Training("train-relevance-model", RELEVANCE),
    "relevance_order": Training("train-relevance-model", ORDER),
    "judge_convolution": Training("train-relevance-model", JUDGE),
    "judge_bag": Training("train-relevance-model", JUDGE, {"architecture": "bag", "seed": 2}),
    "act_judge": Training("train-intent-classifier", ACTS),
}


@dataclass(frozen=True)
class Size:
    """How large everything is; `small`: what is changed in the YAML of each stage, beside what the stage itself decides.

    `pretrained`: whether its stages are those that begin with a pretrained chat model; what is below it is theirs alone.
    """

    agents: tuple[Agent, ...]
    tokens: int  # of a run of PPO
    test_prompts: int | None  # of whole dialogues; None: all
    validation_prompts: int
    pretrained_prompts: int  # that the pretrained judges read
    draws: int  # of start and agents
    bias_prompts: int
    bias_tokens: int = 100_000  # that a learned bias generates with each rate
    bias_rates: tuple[float, ...] = BIAS_RATES
    bias_step: int = 32  # prompts of a step of it
    audit: tuple[str, ...] = ()
    small: dict[str, Keys] = field(default_factory=dict)
    supervised: dict[str, Training] = field(default_factory=lambda: SUPERVISED)
    pretrained: bool = False
    settings: dict[str, tuple[Keys, ...]] = field(default_factory=dict)  # of each way of PPO; validation chooses one
    setting_tokens: int = 12_000  # of a run of each
    leak_dialogues: int = 200
    chat_lines: int = 10
    benchmark: str = "base"  # the size of our benchmark, which runs with the settings of OpenRL's documentation
    always_whole: bool = False  # all agents, also without instructions for bfloat16


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
    tokens=600,
    test_prompts=60,
    validation_prompts=30,
    pretrained_prompts=20,
    draws=2,
    bias_prompts=16,
    bias_tokens=300,
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

GAE = "gae"  # the reward and the estimator of OpenRL's documentation
POLICY: Keys = {
    "turn_separator": "chat_template",
    "context_size": 5,
    "min_context_size": 5,  # the prompts of the published rows
    "max_prompt_length": 192,
    "max_new_tokens": 20,
    "rollout_batch_size": 256,
    "eval_interval": 0,
}
_RLOO_KEYS: Keys = {
    "advantage_estimator": "rloo",
    "num_responses_per_prompt": 8,  # half of the reward's variance is between prompts, and the other replies to one know it
    "num_mini_batch": 4,
    "ppo_epoch": 1,
    "use_lora": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "use_linear_lr_decay": True,
    "kl_coef": 0.02,  # with 0.2 the noise of the KL is larger than that of the score
}
_GAE_KEYS: Keys = {"advantage_estimator": "gae", "critic_warmup": 2}


def pretrained_agents(seeds: int) -> tuple[Agent, ...]:
    """PPO by rloo, and by gae as in OpenRL's documentation."""
    ways = ((RLOO, _RLOO_KEYS), (GAE, _GAE_KEYS))
    return tuple(Agent(name, seed, SEED_PPO, POLICY | keys) for name, keys in ways for seed in range(seeds))


_ENCODER: Keys = {"learning_rate": 5e-5, "epochs": 1}
_WHOLE_TURNS: Keys = {"turn_separator": "chat_template", "context_size": 1000, "max_prompt_length": 512}
_PRETRAINED_SUPERVISED = {
    "sft": Training(
        "train-sft",
        SFT,
        {
            **_WHOLE_TURNS,
            "patience": None,
            "epochs": 0.12,
            "learning_rate": 2e-4,
            "batch_size": 8,
            "evals": 1,
            "max_eval_prompts": 64,  # the stage measures the loss itself, in nats a word
        },
        MODEL,
        "whole",
    ),
    "intent": Training("train-intent-classifier", INTENT, _ENCODER, MINILM),
    "next_act": Training("train-intent-classifier", INTENT, {**_ENCODER, "target": "next_act"}, MINILM),
    "act_judge": SUPERVISED["act_judge"],
    "act_judge_minilm": Training("train-intent-classifier", ACTS, {**_ENCODER, "seed": 2}, MINILM),
}
PRETRAINED = Size(
    agents=pretrained_agents(3),
    tokens=50_000,
    test_prompts=500,
    validation_prompts=200,
    pretrained_prompts=0,
    draws=1,
    bias_prompts=64,
    bias_tokens=12_000,
    bias_rates=(0.15,),
    bias_step=8,  # 12 steps
    supervised=_PRETRAINED_SUPERVISED,
    pretrained=True,
    settings={
        RLOO: ({"lr": 1e-4}, {"lr": 3e-4}),
        GAE: ({"lr": 1e-5, "critic_lr": 1e-3}, {"lr": 3e-5, "critic_lr": 1e-3}),
    },
)
PRETRAINED_FULL = replace(
    PRETRAINED,
    tokens=100_000,
    test_prompts=1500,
    bias_tokens=100_000,
    small={"sft": {"epochs": 1}, **{name: {"epochs": 2} for name in ("intent", "next_act", "act_judge_minilm")}},
)
PRETRAINED_TINY = replace(
    PRETRAINED,
    agents=pretrained_agents(2),
    tokens=100,
    test_prompts=24,
    validation_prompts=12,
    bias_prompts=8,
    bias_tokens=40,
    setting_tokens=50,
    leak_dialogues=8,
    chat_lines=3,
    benchmark="test",
    always_whole=True,
    small={
        "sft": {"use_amp": False, "max_prompt_length": 128, "epochs": 0.2},
        **{
            name: {"use_amp": False, "epochs": 0.2, "max_length": 32}
            for name in ("intent", "next_act", "act_judge_minilm")
        },
        "ppo": {"rollout_batch_size": 16, "num_mini_batch": 2, "max_new_tokens": 6, "max_prompt_length": 96},
        "act_judge": TINY.small["act_judge"],
    },
)
SIZES = {
    "short": SHORT,
    "full": FULL,
    "tiny": TINY,
    "pretrained": PRETRAINED,
    "pretrained_full": PRETRAINED_FULL,
    "pretrained_tiny": PRETRAINED_TINY,
}
