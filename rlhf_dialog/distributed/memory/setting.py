"""The properties of a run that determine the memory of one of its processes. All sizes are bytes. P prompt, T response tokens."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.memory.model_bytes import last_name
from rlhf_dialog.models.policy import LOGITS_AT_ONCE, LOGITS_AT_ONCE_ON_GPU
from rlhf_dialog.models.precision import precision_of

NUCLEUS = 4096  # ids that top-p is taken to keep at most, of a large vocabulary
CriticKind = Literal["none", "shared", "separate"]


@dataclass(frozen=True)
class MemorySetting:
    """The properties of a run that determine the memory of one process; `dataclasses.replace` makes variants."""

    rows: int  # responses of one iteration, of this process
    microbatch: int  # responses of a pass of scoring or update, and prompts that are read at once before writing
    prompt: int  # P
    response: int  # T
    responses_per_prompt: int = 1
    critic: CriticKind = "shared"
    reference: bool = True
    own_reference: bool = False  # ref_model is another model than model_path
    precision: Literal["fp32", "amp", "half"] = "fp32"  # half: 16-bit weights and gradients, fp32 copy in the optimizer
    minibatch: int | None = None  # responses of a step, of this process; None: all rows
    autocast_type: torch.dtype = torch.bfloat16  # of amp
    narrows: bool = False  # frozen linear weights keep the 16 bits of their checkpoint, see `models.precision.narrow`
    top_k: int = 0
    top_p: float = 1.0
    filtered: bool = False  # top-k or top-p
    exact_kl: bool = False  # kl_in: loss
    rows_at_once: int = 128  # responses that are sampled side by side
    packing: bool = True
    classifier_batch: int = 32
    on_cuda: bool = False
    world_size: int = 1
    zero_stage: Literal[0, 1, 2, 3] = 0
    offload_optimizer: bool = False  # with stage 1 to 3
    offload_param: bool = False  # with stage 3
    frozen_stage: Literal[0, 3] = 0  # of the reference
    frozen_offload: bool = False  # it is kept in host memory and moved to the device for scoring
    judge_stage: Literal[0, 3] = 0  # the same for the models of the reward
    judge_offload: bool = False
    lora_rank: int = 0  # 0: every parameter is trained
    lora_targets: tuple[str, ...] = ()  # last parts of the names of linear layers; none: all of the trunk
    activation_checkpointing: bool = False
    logits_chunk: int = 4 * LOGITS_AT_ONCE  # bytes of one buffer of fp32 logits

    def num_prompts(self, rows: int) -> int:
        """How many prompts are read for these responses: packed rows read one once for all responses to it."""
        return math.ceil(rows / self.responses_per_prompt) if self.packing else rows

    @property
    def step_rows(self) -> int:
        """Responses of one optimizer step, of this process."""
        return self.rows if self.minibatch is None else self.minibatch

    @property
    def update_rows(self) -> int:
        """Responses of one forward and backward pass."""
        return min(self.microbatch, self.step_rows)

    def kept_ids(self, vocab: int) -> int:
        """How many token ids a filter keeps at the position where it keeps most."""
        if self.top_p < 1:
            return min(self.top_k or vocab, math.ceil(self.top_p * vocab), NUCLEUS)
        return min(self.top_k, vocab)

    @property
    def weight_bytes(self) -> int:
        return 2 if self.precision == "half" else 4

    @property
    def float_bytes(self) -> int:
        """Bytes of one number in the inputs and outputs of linear layers."""
        return 4 if self.precision == "fp32" else 2

    @property
    def converted_bytes(self) -> int:
        """Bytes of one logit before it is converted to fp32."""
        return 0 if self.float_bytes == 4 else self.float_bytes

    @property
    def holds_reference(self) -> bool:
        """Whether the reference has its own weights; with LoRA it is the policy without its adapter."""
        return self.reference and (self.own_reference or not self.lora_rank)


def memory_setting(config: Config, world_size: int = 1, on_cuda: bool = False) -> MemorySetting:
    """The setting of a configuration; the responses of an iteration are divided among the processes."""
    batch = _find(config.reward_class.args, "batch_size")
    critic: CriticKind = "shared" if config.use_share_model else "separate"
    device = torch.device("cuda" if on_cuda else "cpu")
    plan, precision = batch_plan(config), precision_of(config, device)
    rows = math.ceil(plan.num_responses / world_size)
    return MemorySetting(
        rows=rows,
        minibatch=math.ceil(rows / plan.num_minibatches),
        microbatch=config.microbatch_size,
        packing=config.packing,
        rows_at_once=config.rollout_size,
        prompt=config.max_prompt_length,
        response=config.max_new_tokens,
        responses_per_prompt=config.num_responses_per_prompt,
        critic=critic if config.estimator.needs_critic else "none",
        reference=config.reference,
        own_reference=config.ref_model not in (None, config.model_path),
        precision="fp32" if precision == "fp32" else "amp",
        autocast_type=torch.float16 if precision == "fp16" else torch.bfloat16,
        narrows=on_cuda and precision != "fp32" and not (config.use_deepspeed or config.ref_ds_config),
        lora_rank=config.lora_r if config.use_lora else 0,
        lora_targets=tuple(last_name(target) for target in config.lora_target_modules or ()),
        activation_checkpointing=config.activation_checkpointing,
        top_k=config.top_k,
        top_p=config.top_p,
        filtered=config.top_k > 0 or config.top_p < 1,
        exact_kl=config.kl_in == "loss",
        classifier_batch=batch if isinstance(batch, int) else 32,
        on_cuda=on_cuda,
        logits_chunk=4 * (LOGITS_AT_ONCE_ON_GPU if on_cuda else LOGITS_AT_ONCE),
        world_size=world_size,
    )


def _find(node: Any, key: str) -> Any:
    """The first value of `key` in the arguments of a reward or of one of its parts; None when it is not there."""
    if isinstance(node, dict) and node.get(key):
        return node[key]
    below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for child in below if (found := _find(child, key))), None)
