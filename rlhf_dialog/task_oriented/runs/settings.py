"""The settings of a run that trains a dialogue policy."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rlhf_dialog.config.checks import folder_name
from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.errors import UserError

NUMBER = re.compile(r"\d+(\.\d*)?[eE][-+]?\d+")
PERSON = "person"
MAY_CHANGE = (  # at --resume; everything else decides what is drawn or learned
    *("process_num", "step_timeout_s", "epoch", "eval_interval", "eval_dialogues", "run_dir", "experiment_name"),
    *("save_interval", "keep_checkpoints", "log_interval", "grace_seconds", "domain", "data_path"),
    *("show_goal", "rewards", "reward_after"),
    *("use_wandb", "wandb_entity", "wandb_project", "disable_wandb", "use_tensorboard", "use_rich_handler"),
)
# what is kept beside a trained policy, so that it can be built again
OF_AGENT = ("domain", "data_path", "domains", "error_rate", "user", "max_turns", "end_reward", "environment", "policy")


class ActionsConfig(Settings):
    """A list of actions as the domain"""

    actions: str = Field(description="JSON file with the actions: name, sentence, and when it is allowed")
    state: ClassConfig = Field(
        default_factory=lambda: ClassConfig(id="last_turns"),
        description="what the policy observes of the dialogue: last_turns, or a registered function of your own",
    )

    @field_validator("state", mode="before", json_schema_input_type=ClassConfig | str)
    @classmethod
    def _only_a_name(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value


class PolicyConfig(Settings):
    """Dialogue policy"""

    domain: str | ActionsConfig = Field(
        "restaurant",
        description="restaurant, multiwoz, or the path of your domain (our JSON, PyDial, CamRest676); with user: person also "
        "{actions: FILE}, a list of what the system can say",
    )
    data_path: str | None = Field(None, description="for multiwoz: the folder with db/, ontology and goal model")
    domains: list[str] | None = Field(
        None, description="for multiwoz: the domains that users ask for, e.g. [restaurant, hotel]; null: all"
    )
    end_reward: tuple[float, float] | None = Field(
        None, description="for multiwoz: rewards of success and failure, e.g. [20, 0]; null: 80 and -40"
    )
    error_rate: float = Field(0.0, ge=0, le=1, description="probability of misunderstanding a user act; 0.15 is usual")
    user: str | dict[str, Any] = Field(
        "friendly",
        description="friendly, unfriendly, fixed, or parameters of the agenda user; person: you talk and give the rewards",
    )
    show_goal: bool = Field(True, description="for user: person: show you a goal to pursue; false: you choose your own")
    rewards: tuple[float, float] | None = Field(
        None, description="for user: person: lowest and highest; null: -20 and 20 (list of actions: -1 and 1)"
    )
    reward_after: Literal["dialogue", "turn"] | None = Field(
        None, description="for user: person: when to ask for a reward; null: dialogue (list of actions: turn)"
    )
    max_turns: int = Field(25, ge=1, description="longer dialogues are cut off and count as failed")
    policy: ClassConfig = Field(
        default_factory=lambda: ClassConfig(id="ppo"),
        description="ppo, gp_sarsa, dqn, bbqn, feudal, acer, a2c, tracer, enac, random, handcrafted; "
        "for several domains also manager, committee; or a registered class",
    )
    environment: ClassConfig | None = Field(
        None,
        description="{id, args} of a registered environment, used instead of domain, error_rate and user; max_turns and "
        "step_timeout_s still apply",
    )
    imitation_dialogues: int = Field(
        0,
        ge=0,
        description="number of dialogues of the handcrafted policy that ppo imitates first; 0: it starts untrained",
    )
    batchsz: int = Field(1024, ge=1, description="turns sampled per iteration")
    epoch: int = Field(200, ge=1, description="number of iterations")
    num_envs: int = Field(8, ge=1, le=4096, description="number of dialogues that run in parallel")
    process_num: int = Field(
        0, ge=0, le=256, description="worker processes for the environments; 0: none. Results do not depend on it"
    )
    step_timeout_s: float | None = Field(
        None, gt=0, description="time limit in seconds for one step of your own environment; null: none"
    )
    seed: int = Field(0, ge=0, lt=2**30, description="seed of weights, users, errors and sampling")
    eval_interval: int = Field(10, ge=0, description="iterations between evaluations on held-out dialogues; 0: none")
    eval_dialogues: int = Field(200, ge=1, description="dialogues per evaluation, always the same ones")
    run_dir: str = Field("./runs", description="the run folder is <run_dir>/<experiment_name>")
    experiment_name: str | None = Field(None, description="default: the YAML's file name without its extension")
    save_interval: int = Field(
        1, ge=1, description="iterations between checkpoints; 1: a kill loses no finished iteration"
    )
    keep_checkpoints: int = Field(2, ge=1, description="number of newest checkpoints to keep")
    log_interval: int = Field(10, ge=1, description="iterations between log lines; metrics.jsonl has every iteration")
    grace_seconds: float = Field(
        25.0, ge=0, description="after a signal, the current iteration may take this many seconds to finish"
    )
    use_wandb: bool = Field(False, description="log to wandb; offline without an API key or a connection")
    wandb_entity: str | None = Field(None, description="wandb team; has no effect without use_wandb")
    wandb_project: str = Field("rlhf-dialog", description="wandb project")
    disable_wandb: bool = Field(False, description="true: same as use_wandb: false, and overrides it")
    use_tensorboard: bool = Field(False, description="log to <run folder>/tensorboard")
    use_rich_handler: bool = Field(True, description="show a live display on a terminal; false: plain lines")
    pytorch_threads: int | None = Field(1, ge=1, description="CPU threads of torch; null: torch's own choice")

    @field_validator("policy")
    @classmethod
    def _numbers_in_args(cls, policy: ClassConfig) -> ClassConfig:
        return ClassConfig(id=policy.id, args=_with_numbers(policy.args))

    _folder_name = field_validator("experiment_name")(folder_name)

    @model_validator(mode="after")
    def _fits(self) -> "PolicyConfig":
        if self.imitation_dialogues and self.policy.id != "ppo":
            raise ValueError(f"imitation_dialogues: only ppo imitates, found policy {self.policy.id!r}; use 0")
        if self.step_timeout_s and not self.environment:
            raise ValueError("step_timeout_s: limits an environment of your own; set environment, or leave it out")
        for key in ("domain", "data_path", "domains", "error_rate", "user", "end_reward") if self.environment else ():
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: an environment of your own does not read it; give it with environment.args")
        if self.user == PERSON:
            if self.error_rate or self.imitation_dialogues:
                raise ValueError(
                    "user: with a person nobody is misunderstood or imitated; leave error_rate and imitation_dialogues out"
                )
            if self.rewards and not self.rewards[0] < self.rewards[1]:
                raise ValueError(f"rewards: the first number is the lowest reward, found {list(self.rewards)}")
        elif isinstance(self.domain, ActionsConfig):
            raise ValueError("domain: only people talk about a list of actions; add user: person")
        if self.batchsz < self.num_envs:
            raise ValueError(
                f"batchsz: {self.batchsz} turns are fewer than num_envs: {self.num_envs} dialogues; lower num_envs"
            )
        return self

    @property
    def run_folder(self) -> Path:
        return Path(self.run_dir).expanduser() / str(self.experiment_name or "policy")

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.rewards or ((-1.0, 1.0) if isinstance(self.domain, ActionsConfig) else (-20.0, 20.0))

    @property
    def rewards_each_answer(self) -> bool:
        """Whether a person is asked for a reward after each answer, else after each dialogue."""
        return (self.reward_after or ("turn" if isinstance(self.domain, ActionsConfig) else "dialogue")) == "turn"

    def identity(self, domain_hash: str) -> dict[str, Any]:
        """What must not change when a run goes on."""
        return {**self.model_dump(mode="json", exclude=set(MAY_CHANGE)), "domain_hash": domain_hash}


def _with_numbers(value: Any) -> Any:
    """The arguments, those of a manager's policies among them, with `3e-4` as a number; PyYAML reads it as text."""
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def load_policy_config(path: Path | None, overrides: dict[str, Any] | None = None) -> PolicyConfig:
    """The settings; the run has the name of the file unless they name it. Raises UserError that lists every mistake."""
    config = load_settings(PolicyConfig, path, overrides)
    if config.experiment_name is None and path is not None:
        try:
            config.experiment_name = path.stem
        except ValueError as error:
            raise UserError(
                f"{path}: its name cannot be that of a run folder; set --experiment_name ({error})"
            ) from None
    return config
