"""Every key of the YAML with its type, range, default and meaning. The names are those of OpenRL's configuration."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from rlhf_dialog.config.checks import OneOf, RepositoryName, check_together, folder_name, without_prompts
from rlhf_dialog.config.problems import listed, sentences
from rlhf_dialog.config.registry import AdvantageFactory, Formula, LossFactory
from rlhf_dialog.config.settings import (
    AmpKey,
    AsksPrecision,
    ChatKeys,
    ColumnsKey,
    CountOrAuto,
    DataKeys,
    DecayKey,
    DeviceKey,
    PickleKey,
    Precision,
    SamplingKeys,
    SeedKey,
    SplitKey,
    ThreadsKey,
    TrustCodeKey,
)
from rlhf_dialog.config.settings import Settings as Settings

Count = Annotated[int, Field(ge=1, le=10**6)]
Amount = Annotated[float, Field(ge=0, le=10**6)]
Positive = Annotated[float, Field(gt=0, le=10**6)]
MaybePositive = Annotated[float | None, Field(gt=0, le=10**6)]
WITH_CRITIC, WITH_GROUPS = (
    " and ".join(AdvantageFactory.names_with(needs)) for needs in ("needs_critic", "needs_groups")
)
BY_ESTIMATOR: Any = None  # null in the file; validation replaces it by the default number of the estimator


class RunKeys(AsksPrecision, Settings):
    """Run"""

    seed: SeedKey = Field(0, description="seed of Python, NumPy, PyTorch and the order of the prompts")
    run_dir: str = Field("./run_results", description="the run folder is <run_dir>/<experiment_name>")
    experiment_name: str | None = Field(
        None, description="default: the YAML's file name without its extension; `ppo` for settings from Python"
    )
    total_time_steps: int = Field(
        100_000, ge=1, description="number of generated tokens; training ends after the iteration that reaches it"
    )
    max_iterations: int | None = Field(None, ge=1, description="number of iterations, instead of total_time_steps")
    total_episodes: int | None = Field(None, ge=1, description="number of responses, instead of total_time_steps")
    save_interval: CountOrAuto = Field(
        "auto",
        description="iterations between checkpoints. auto: after the first, then every 5, or fewer where writing them takes over "
        "a twentieth of the time",
    )
    keep_checkpoints: int = Field(2, ge=1, description="number of newest checkpoints to keep, besides the best")
    verify_checkpoint: Literal["full", "sizes"] = Field(
        "full", description="what --resume checks of each file of a checkpoint: its SHA-256, or only its size"
    )
    allow_changed_reward: bool = Field(
        False,
        description="let --resume go on when the code of your reward, estimator or loss has changed, with a warning",
    )
    agent_dtype: Literal["auto", "float32", "checkpoint"] = Field(
        "auto",
        description="type of the saved agent's weights. checkpoint: that of model_path; auto: the same, but float32 for trained "
        "weights of which rounding would lose over 5 % of the change; rounding may change replies",
    )
    grace_seconds: Amount = Field(20.0, description="seconds to finish and save the iteration after SIGTERM or Ctrl-C")
    log_interval: int = Field(
        1, ge=1, description="iterations between console lines and tracker points; metrics.jsonl has every iteration"
    )
    sample_interval: int = Field(
        10, ge=0, description="iterations between tables of the ledger in wandb and TensorBoard; 0: none"
    )
    ledger: bool = Field(True, description="write score, parts, KL and length of each response to ledger.jsonl")
    ledger_texts: Literal["some", "all", "none"] = Field(
        "some", description="prompts and replies in ledger.jsonl: of 8 responses per iteration, of all, or of none"
    )
    report: bool = Field(True, description="update report.html during training, at most every 30 seconds")
    eval_interval: int = Field(
        0, ge=0, description="iterations between evaluations on the validation split, with one more at the end; 0: none"
    )
    eval_episodes: int = Field(256, ge=1, description="number of validation prompts, the same in every evaluation")
    eval_metric: str = Field(
        "score",
        min_length=1,
        description="metric of the best checkpoint (higher is better), without its prefix `eval/`",
    )
    device: DeviceKey = "auto"
    precision: Precision = Field(
        "auto",
        description="precision of rollout, scoring and update; trained weights are float32. auto: bf16 on a GPU that has it, "
        "else fp32; fp16: with loss scaling, for GPUs without bf16",
    )
    use_amp: AmpKey = None
    amp_dtype: Literal["auto", "bf16", "fp16"] = Field("auto", description="older key: type for use_amp; auto: bf16")
    pytorch_threads: ThreadsKey = None
    use_wandb: bool = Field(False, description="log to wandb; offline without an API key or a connection")
    wandb_entity: str | None = Field(None, description="wandb team; has no effect without use_wandb")
    wandb_project: str = Field("rlhf-dialog", description="wandb project")
    use_tensorboard: bool = Field(False, description="log to <run folder>/tensorboard")
    push_to_hub: RepositoryName = Field(None, description="Hub repository that gets the agent at the end of the run")
    use_rich_handler: bool = Field(True, description="show a live display on a terminal; false: plain lines")

    _folder_name = field_validator("experiment_name")(folder_name)

    @field_validator("ledger_texts", mode="before", json_schema_input_type=Literal["some", "all", "none"] | bool)
    @classmethod
    def _texts_by_yes_or_no(cls, value: Any) -> Any:
        return ("all" if value else "none") if isinstance(value, bool) else value


class ModelKeys(Settings):
    """Models"""

    model_path: str = Field(description="causal language model to train: folder or Hub name")
    ref_model: str | None = Field(
        None, description="frozen reference of the KL penalty, with the same token ids; default: model_path"
    )
    reference: bool = Field(
        True,
        description="false, which needs kl_coef: 0: no reference model, so less time and memory; KL and gain are null",
    )
    use_share_model: bool = Field(
        False,
        description="true: policy and critic share one model with a value head; false: a separate critic",
    )
    critic_path: str | None = Field(
        None,
        description="initial model of a separate critic, such as a reward model with the same tokenizer: folder or Hub name; "
        "default: model_path",
    )
    packing: bool = Field(True, description="skip padding where attention allows it; changes speed, not the result")
    trust_remote_code: TrustCodeKey = False
    allow_pickle_weights: PickleKey = False


class MemoryKeys(Settings):
    """Less memory"""

    use_lora: bool = Field(
        False, description="train small adapters on the frozen model_path, which is also the reference"
    )
    load_in_4bit: bool = Field(
        False,
        description="with use_lora: hold the linear layers of the frozen model in 4 bits (QLoRA); needs bitsandbytes",
    )
    lora_r: int = Field(16, ge=1, le=2**16, description="rank of the adapters")
    lora_alpha: float = Field(32.0, gt=0, description="the adapters' change is scaled by lora_alpha / lora_r")
    lora_target_modules: list[str] | None = Field(
        None, min_length=1, description="linear layers to adapt, by the ends of their names; default: all of the trunk"
    )
    activation_checkpointing: bool = Field(
        False, description="recompute each layer in the backward pass: less memory, more time"
    )


class PPOKeys(Settings):
    """PPO"""

    advantage_estimator: Annotated[str, OneOf(AdvantageFactory.formulas)] = Field(
        "gae", description=f"only {WITH_CRITIC} trains a critic; or one of your own, see docs/EXTENDING.md"
    )
    num_responses_per_prompt: Count = Field(
        BY_ESTIMATOR,
        validate_default=True,
        description=f"responses to each prompt; default: 1, or 4 for {WITH_GROUPS}",
    )
    episode_length: Count = Field(
        128, description="OpenRL's tokens per environment and iteration; see rollout_batch_size"
    )
    env_num: Count = Field(5, description="OpenRL's number of environments, over all processes; see rollout_batch_size")
    rollout_batch_size: int | None = Field(
        None,
        ge=1,
        le=10**6,
        description="responses per iteration, over all processes; default: episode_length * env_num / max_new_tokens, rounded up",
    )
    ppo_epoch: int = Field(5, ge=1, le=10**4, description="passes over each rollout")
    num_mini_batch: Count = Field(20, description="minibatches (optimizer steps) per pass; at most one per response")
    per_device_microbatch_size: CountOrAuto = Field(
        "auto",
        description="responses per forward pass; changes memory and speed, not the result; auto: the largest power of two that "
        "fits on a GPU, 16 on a CPU or with sharded weights",
    )
    per_device_rollout_size: CountOrAuto = Field(
        "auto",
        description="responses generated at the same time; changes memory and speed, not the result; auto: the largest power of "
        "two that fits on a GPU, 128 on a CPU or with sharded weights",
    )
    lr: float = Field(1e-6, gt=0, description="learning rate of the policy")
    critic_lr: float = Field(
        1e-6, gt=0, description="learning rate of a separate critic, or of the value head of a shared model"
    )
    critic_warmup: int = Field(
        0,
        ge=0,
        description="number of iterations at the start in which only the critic is trained: a separate one, or a value head",
    )
    opti_eps: Positive = Field(1e-5, description="epsilon of Adam")
    weight_decay: DecayKey = 0.0
    use_linear_lr_decay: bool = Field(False, description="learning rates fall linearly to 0 over the run")
    gamma: float = Field(
        0.99,
        ge=0,
        le=1,
        description=f"discount factor per response token; no effect on {WITH_GROUPS}",
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="lambda of generalised advantage estimation")
    credit: Literal["token", "turn"] = Field(
        "token",
        description="step of generalised advantage estimation, which gamma and gae_lambda count: a token of the policy, or a "
        "whole turn of a dialogue",
    )
    group_std: bool = Field(
        True, description="of grpo: divide by the standard deviation of the group's rewards; false: Dr. GRPO"
    )
    resample_flat_groups: int = Field(
        0,
        ge=0,
        description="up to so many further rounds of prompts in place of those whose responses all have the same reward (dynamic "
        "sampling of DAPO, arXiv 2503.14476); needs several responses to each prompt",
    )
    use_adv_normalize: bool = Field(True, description="whiten the advantages once over the whole rollout")
    clip_param: Positive = Field(0.2, description="clip range of the ratio, and of the value in the clipped value loss")
    clip_param_high: MaybePositive = Field(
        None, description="upper clip range of the ratio (DAPO: 0.28; arXiv 2503.14476); default: clip_param"
    )
    policy_loss: Annotated[str, OneOf(LossFactory.formulas)] = Field(
        "clip",
        description="clip: PPO's; cispo: log-probabilities times a ratio of at most 1 + clip_param_high without a gradient "
        "(arXiv 2506.13585); or one of your own, see docs/EXTENDING.md",
    )
    ratio: Literal["token", "sequence"] = Field(
        "token",
        description="what is clipped: the ratio of each token, or the geometric mean over its reply (GSPO-token, arXiv "
        "2507.18071, which clips at clip_param: 3e-4, clip_param_high: 4e-4; 0.2 never clips it)",
    )
    loss_average: Literal["rollout", "response", "length"] = Field(
        "rollout",
        description="weight of a token in the losses of policy, entropy and KL. rollout: the same for all; response: the same "
        "for all responses, shared by their tokens; length: the same for all, at responses of max_new_tokens (Dr. GRPO, arXiv "
        "2503.20783)",
    )
    value_clip_param: MaybePositive = Field(None, description="clip range of the value loss; default: clip_param")
    dual_clip_coeff: float = Field(
        3.0, gt=1, le=10**6, description="with dual_clip_ppo: bound of the loss, as a multiple of a negative advantage"
    )
    entropy_coef: Amount = Field(0.01, description="weight of the entropy bonus")
    value_loss_coef: Amount = Field(0.5, description="weight of the value loss")
    use_clipped_value_loss: bool = Field(True, description="clip the change of the value to value_clip_param")
    huber_delta: Positive = Field(10.0, description="error above which the Huber value loss is linear")
    use_valuenorm: bool = Field(True, description="normalise the critic's returns by their running mean and deviation")
    max_grad_norm: Positive = Field(10.0, description="maximum gradient norm, of policy and separate critic each")
    max_skipped_steps: int = Field(
        3, ge=1, description="consecutive optimizer steps with non-finite numbers that stop the run; fewer are skipped"
    )

    @field_validator(
        "num_responses_per_prompt", mode="before", json_schema_input_type=Annotated[int, Field(ge=1, le=10**6)] | None
    )
    @classmethod
    def _by_estimator(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        name = info.data.get("advantage_estimator")  # absent when it is invalid
        return AdvantageFactory.formulas[name].num_responses_per_prompt if name else 1


class RewardKeys(Settings):
    """Reward and KL"""

    kl_coef: Amount = Field(0.2, description="initial coefficient of the KL penalty per token")
    kl_target: Positive = Field(0.05, description="KL per token that the controller aims for")
    kl_rate: Amount = Field(0.1, description="step size of the controller; 0: kl_coef stays fixed")
    kl_clip: Positive = Field(0.2, description="limit of the controller's relative error")
    kl_hold: bool = Field(True, description="keep the coefficient from falling until the KL has reached its target")
    kl_coef_max: MaybePositive = Field(10.0, description="largest coefficient the controller sets; null: no limit")
    kl_in: Literal["reward", "loss"] = Field(
        "reward",
        description="reward: subtract the log-ratio of each sampled token from its reward; loss: add the exact KL over the "
        "vocabulary (with top_k or top_p: over the kept tokens) to the loss",
    )
    kl_estimator: Literal["k1", "k3"] = Field(
        "k1",
        description="penalty of a token under kl_in: reward, with r = reference's / policy's probability. k1: -log r; k3: "
        "r - 1 - log r, never negative. kl_target and objective/kl always mean k1",
    )
    whiten_rewards: bool = Field(
        False,
        description="divide the token rewards, including KL penalties, by their standard deviation over the rollout; a positive "
        "mean then acts as a penalty on length",
    )
    truncation_penalty: Amount = Field(0.0, description="subtracted from the score of a response cut at max_new_tokens")
    overlong_penalty_tokens: int = Field(
        0,
        ge=0,
        description="k > 0: truncation_penalty grows linearly over the last k of max_new_tokens, also for a reply that ends "
        "there (DAPO, arXiv 2503.14476)",
    )
    on_reward_error: Literal["stop", "skip"] = Field(
        "stop",
        description="if a response has no finite score: stop the run, or skip the episode "
        f"({WITH_GROUPS}: its whole group) and count it",
    )
    reward_timeout_s: MaybePositive = Field(
        None, description="time limit for scoring a rollout or an evaluation; default: no limit"
    )


class ClassConfig(Settings):
    """A registered class and the arguments of its constructor."""

    id: str = Field(description="registered name of the class")
    args: dict[str, Any] = Field(default_factory=dict, description="arguments of its constructor")

    @field_validator("args", mode="before", json_schema_input_type=dict[str, Any] | None)
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value


class EnvironmentConfig(ClassConfig):
    """A registered environment, and how long it may take."""

    step_timeout_s: MaybePositive = Field(None, description="seconds for one call of reset or step")
    max_turns: int = Field(1000, ge=1, description="replies after which an environment must have ended its dialogue")


class EnvArgs(Settings):
    tokenizer_path: str | None = Field(None, description="tokenizer: folder or Hub name; default: model_path")
    data_path: str = Field(
        description="dataset: file, folder, zip or Hub name; for the formats see docs/DATA.md; not read with an environment"
    )
    columns: ColumnsKey = Field(default_factory=dict)
    split: SplitKey = Field(default_factory=dict)


class EnvConfig(Settings):
    args: EnvArgs


class DeepSpeedKeys(Settings):
    """Several processes"""

    use_deepspeed: bool = Field(False, description="train with DeepSpeed ZeRO, on one or more processes")
    use_fsdp: bool = Field(False, description="train with FSDP2, which accelerate config can ask for too")
    use_fp16: bool = Field(False, description="fp16 weights in the DeepSpeed engine; settings: the JSON's fp16 block")
    use_offload: bool = Field(False, description="optimizer state in host memory; at ZeRO stage 3 also the weights")
    deepspeed_config: str | None = Field(
        None, description="DeepSpeed JSON, in the YAML's folder or ds_configs/; default: ZeRO stage 2"
    )
    ref_ds_config: str | None = Field(
        None,
        description="DeepSpeed JSON for the frozen reference, or `default`: it waits on the CPU; null: partitioned as the policy",
    )
    intent_ds_config: str | None = Field(
        None, description="the same for the frozen models of the reward, such as an act classifier"
    )
    local_rank: int = Field(-1, description="set by the launcher; leave it out")


class DoubledKeys(Settings):
    """OpenRL switches that duplicate another key"""

    disable_cuda: bool = Field(False, description="true: same as device: cpu")
    disable_wandb: bool = Field(False, description="true: same as use_wandb: false, and overrides it")
    use_gae: bool = Field(True, description="false: same as gae_lambda: 1, plain discounted returns")
    use_huber_loss: bool = Field(True, description="false: squared value loss, same as a huge huber_delta")
    use_max_grad_norm: bool = Field(True, description="false: do not clip gradients, same as a huge max_grad_norm")
    dual_clip_ppo: bool = Field(
        False,
        description="true: bound the loss of negative advantages (dual clip); false: same as a huge dual_clip_coeff",
    )


class GuardConfig(Settings):
    """The guard: compares the reward with a judge on validation prompts."""

    action: Literal["warn", "stop"] = Field(
        "warn",
        description="what follows when the reward rises and the judge falls over three validations, both by more than chance "
        "explains in 1 of 20 runs of 20 validations (about 2.8 standard errors). warn: a warning; stop: the end of the run, "
        "with exit code 3; the newest checkpoint from before these validations is kept",
    )
    judge: ClassConfig = Field(description="a registered reward outside of reward_class: {id, args}")


class EngineConfig(Settings):
    """vLLM servers beside the run, which write the responses of training."""

    urls: list[str] = Field(
        min_length=1, max_length=1000, description="addresses of the servers, which share the prompts"
    )
    folder: str | None = Field(
        None,
        description="where weights are written for the servers, which read them by the same path; default: "
        "/dev/shm/rlhf_dialog-<user number>",
    )
    weights: Literal["auto", "adapter", "files"] = Field(
        "auto",
        description="what is sent before each rollout. adapter: the LoRA adapter; files: all weights, for which the servers need "
        "VLLM_SERVER_DEV_MODE=1; auto: adapter with use_lora, else files",
    )
    timeout_s: float = Field(600.0, ge=0.001, le=86400, description="seconds for one request")
    retries: int = Field(2, ge=0, le=100, description="how often a request is sent again, before the run stops")
    cap: Positive = Field(
        2.0, description="largest weight of a token in the policy loss: its probability by the policy / by the engine"
    )
    token_env: str | None = Field(
        None, description="environment variable whose text is sent as `Authorization: Bearer <text>`"
    )


class Config(
    RunKeys, ModelKeys, MemoryKeys, DataKeys, SamplingKeys, ChatKeys, RewardKeys, PPOKeys, DeepSpeedKeys, DoubledKeys
):
    """The configuration of train_ppo.py"""

    model_config = ConfigDict(frozen=True)  # another one is made by `loading.replace_keys`

    env: EnvConfig = Field(description="source of the prompts; not needed with an environment")
    environment: EnvironmentConfig | None = Field(
        None, description="used instead of prompts: {id, args, step_timeout_s, max_turns}, see docs/ENVIRONMENTS.md"
    )
    reward_class: ClassConfig = Field(
        description="the reward: {id, args}; the id is a registered name, or a function, FILE.py:FUNCTION or "
        "PACKAGE.MODULE:FUNCTION, whose keyword arguments are args"
    )
    guard: GuardConfig | None = Field(
        None,
        description="check at each validation (eval_interval) whether the score rises while a judge falls: {action, judge: "
        "{id, args}}, see docs/READING_A_RUN.md",
    )
    engine: EngineConfig | None = Field(
        None,
        description="vLLM writes the responses of training: {urls, folder, weights, timeout_s, retries, cap, token_env}, see "
        "docs/SCALING.md",
    )
    model_class: ClassConfig | None = Field(
        None,
        description="your own policy network, see docs/MODELS.md; model_path is then the folder of its tokenizer or an agent",
    )
    critic_class: ClassConfig | None = Field(None, description="your own critic network, see docs/MODELS.md")
    vec_info_class: ClassConfig = Field(
        default_factory=lambda: ClassConfig(id="NLPVecInfo"), description="extra metrics: {id, args}"
    )

    def __init__(self, **values: Any) -> None:
        """Raises UserError that lists every mistake, as for a YAML with these keys."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise listed("the configuration", sentences(Config, error)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # `model_validate` does not call it

    @model_validator(mode="before")
    @classmethod
    def _without_prompts(cls, values: Any) -> Any:
        return without_prompts(values) if isinstance(values, dict) and values.get("environment") else values

    @model_validator(mode="after")
    def _together(self) -> "Config":
        check_together(self)
        return self

    @property
    def estimator(self) -> Formula:
        return AdvantageFactory.formulas[self.advantage_estimator]

    @property
    def microbatch_size(self) -> int:
        return 16 if self.per_device_microbatch_size == "auto" else self.per_device_microbatch_size

    @property
    def rollout_size(self) -> int:
        return 128 if self.per_device_rollout_size == "auto" else self.per_device_rollout_size

    @property
    def uses_fp16(self) -> bool:
        return self.asked_precision == "fp16"
