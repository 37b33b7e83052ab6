"""Names the cause of a failed identity check: the comparison is repeated with one thing switched off after the other.

The checks compare log-probabilities that must be equal: of the policy as it sampled, and of its reference at the start or of the
update. When one fails, all ranks compare a few responses again, once for each of CAUSES. While checks pass nothing of this runs.
Models and random states are afterwards as they were. B responses, T of their tokens, K predictions, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.random_states import random_states_kept
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.generation import new_decoder, sampling_context
from rlhf_dialog.models.load_checks import REMEDIES, WithoutCasts
from rlhf_dialog.models.lora import select_adapter
from rlhf_dialog.models.masks import apply_mask
from rlhf_dialog.models.network import NetworkLM, own_network
from rlhf_dialog.models.policy import Policy, num_positions, packs
from rlhf_dialog.models.precision import HALF
from rlhf_dialog.models.responder import Responder
from rlhf_dialog.models.token_batch import Packed, TokenBatch
from rlhf_dialog.training.checks import WARN, Noise, times_the_noise
from rlhf_dialog.training.rollout import Rollout

ROWS, COLUMNS = 8, 64  # responses of each process, and tokens of each
# a rollout in segments, and rows of it on the host, those with the largest difference first
Suspects = tuple[Rollout, Tensor]


@dataclass(frozen=True)
class ComparedRows:
    """Prompts and the first tokens of their responses; `recorded` (B, T): the log-probabilities that sampling stored."""

    tokens: TokenBatch
    recorded: Tensor

    @cached_property
    def packed(self) -> Packed:
        return self.tokens.pack()

    def single_rows(self) -> "list[ComparedRows]":
        """Each row without padding."""
        rows = [self.tokens.rows(slice(i, i + 1)).without_padding() for i in range(len(self.tokens))]
        return [ComparedRows(row, self.recorded[i : i + 1, : row.mask.shape[1]]) for i, row in enumerate(rows)]


def select_rows(rollout: Rollout, rows: Tensor, positions: int | None) -> ComparedRows:
    """The first COLUMNS tokens of at most ROWS responses of a rollout in segments, for a model of that many `positions`."""
    tokens = rollout.tokens
    chosen = rows[tokens.response_mask[rows, :COLUMNS].any(dim=1)][:ROWS]
    tokens = tokens.rows(chosen)
    room = positions - int(tokens.prompt_mask.sum(dim=1).max()) if positions and len(chosen) else COLUMNS
    end = min(COLUMNS, room)
    ids, mask = tokens.response_ids[:, :end], tokens.response_mask[:, :end]
    support = None if tokens.support is None else tokens.support[:, :end]
    recorded = rollout.logprobs[chosen.to(rollout.logprobs.device), :end]
    return ComparedRows(tokens.with_responses(ids, mask, support), recorded)


@contextmanager
def use_eval_mode(policy: Policy) -> Iterator[Any]:
    with ExitStack() as stack:
        for module in policy.modules():
            stack.callback(setattr, module, "training", module.training)
        yield policy.eval()


@contextmanager
def use_float32(policy: Policy) -> Iterator[Any]:
    with ExitStack() as stack:
        for x in (*policy.lm.parameters(), *policy.lm.buffers()):
            if x.dtype in HALF:
                stack.callback(setattr, x, "data", x.data)
                x.data = x.data.float()
        yield stack.enter_context(WithoutCasts())


@contextmanager
def disable_packing(policy: Policy) -> Iterator[None]:
    """Rows are padded, and computed by the library's own attention."""
    with ExitStack() as stack:
        stack.callback(policy.__dict__.pop, "has_plain_head")  # it is tried again afterwards
        if packs(policy.lm):
            stack.callback(policy.lm.set_attn_implementation, policy.lm.config._attn_implementation)
            policy.lm.set_attn_implementation("sdpa")
        policy.__dict__["has_plain_head"] = False  # as in `Policy` for a model that does not pack
        yield


@contextmanager
def drop_position_ids(policy: Policy) -> Iterator[None]:
    """The model counts positions itself, of rows that are neither packed nor padded."""

    def drop(_: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        return args, {name: value for name, value in options.items() if name != "position_ids"}

    called: Any = own_network(policy.lm) if isinstance(policy.lm, NetworkLM) else policy.lm.base_model
    with disable_packing(policy), called.register_forward_pre_hook(drop, with_kwargs=True):
        yield


@dataclass(frozen=True)
class Cause:
    """The difference is gone `when` the cause is switched off; under `row_by_row` each row is computed alone."""

    name: str
    without: Callable[[Policy], AbstractContextManager[Any]]
    when: str
    remedy: str
    row_by_row: bool = False


ADAPTER_REMEDY = "Start the policy's adapter with B = 0, and keep the reference without adapters"
PADDING_REMEDY = "Let the model use the attention_mask and the position_ids that it gets"
CAUSES = (
    Cause("training mode", use_eval_mode, "in eval mode", REMEDIES["dropout"]),
    Cause("16 bits", use_float32, "in 32 bits", REMEDIES["dtype"]),
    Cause("adapter", lambda policy: select_adapter(policy.lm, None), "without LoRA's adapters", ADAPTER_REMEDY),
    Cause("packing", disable_packing, "when rows are padded, and not packed into one sequence", REMEDIES["packing"]),
    Cause("padding", lambda _: nullcontext(), "when each row is computed alone", PADDING_REMEDY, row_by_row=True),
    Cause(
        "positions", drop_position_ids, "when the model counts positions itself", REMEDIES["positions"], row_by_row=True
    ),
)


@dataclass
class Findings:
    """Of one rank: whether its responses differ, the causes that explain it, and why others could not be tested.

    `numbers`: the log-probabilities of one token on both sides, computed once more; None where these are then equal.
    """

    differs: bool = False
    numbers: tuple[float, float] | None = None
    explained: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


class Diagnosis:
    """Names the cause of a failed check. All ranks call it at the same point, and raise the same."""

    def __init__(self, speaker: Responder, placement: Placement, world: World, temperature: float):
        self.speaker, self.placement, self.world, self.temperature = speaker, placement, world, temperature

    def explain(self, error: RunStopped, other: Policy, noise: Noise, suspects: Suspects) -> RunStopped:
        """The error with its cause; all ranks have one, and call this.

        `other` is what the policy was compared with: its reference, or itself in the update.
        """
        with random_states_kept(), self.placement.rollout():
            findings = self._examine(other, noise, suspects)
        return RunStopped(f"{error} {conclude(self.world.gather(findings))}")

    def _examine(self, other: Policy, noise: Noise, suspects: Suspects) -> Findings:
        """What this rank finds; it waits for no other."""
        findings, policy = Findings(), self.speaker.policy
        try:
            rows = select_rows(*suspects, num_positions(policy.lm))
            if not len(rows.tokens):
                return findings
            sampled, read = self._compute(rows, other)
            if is_equal(sampled, read, noise):
                findings.differs = not is_equal(rows.packed.gather(rows.recorded), read, noise)
                return findings
            largest = int((sampled - read).abs().argmax())
            findings.differs, findings.numbers = True, (sampled[largest].item(), read[largest].item())
            for cause in CAUSES:
                try:
                    if self._explains(cause, rows, other, noise):
                        findings.explained.append(cause.name)
                except Exception as error:  # the run ends in any case, with what the check has found
                    findings.errors[cause.name] = repr(error)[:150]
        except Exception as error:
            findings.differs, findings.errors = True, {"all": repr(error)[:150]}
        return findings

    def _explains(self, cause: Cause, rows: ComparedRows, other: Policy, noise: Noise) -> bool:
        """Whether both sides agree without the cause."""
        with ExitStack() as stack:
            for policy in {id(x): x for x in (self.speaker.policy, other)}.values():
                stack.enter_context(cause.without(policy))
            parts = rows.single_rows() if cause.row_by_row else [rows]
            sampled, read = zip(*(self._compute(part, other) for part in parts), strict=True)
        return is_equal(torch.cat(sampled), torch.cat(read), noise)

    def _compute(self, rows: ComparedRows, other: Policy) -> tuple[Tensor, Tensor]:
        """Log-probabilities (K,) of the policy, token by token as it samples, and of `other`, all tokens at once."""
        policy, tokens, packed, features = self.speaker.policy, rows.tokens, rows.packed, []
        num_columns = tokens.response_ids.shape[1]
        with torch.no_grad(), sampling_context(policy, tokens.prompt_ids):
            decoder = new_decoder(policy, tokens, num_columns, len(tokens))
            for t in range(num_columns):
                features.append(decoder.features)
                if t + 1 < num_columns:
                    decoder.step(tokens.response_ids[:, t])
            at_targets = packed.gather(torch.stack(features, dim=1))
            sampled = policy.predict(at_targets, packed, self.temperature).logprobs
        with torch.set_grad_enabled(other is policy):
            read = other(packed, self.temperature, with_entropy=False).logprobs
        return sampled, read.detach()


def is_equal(first: Tensor, second: Tensor, noise: Noise) -> bool:
    """Whether log-probabilities (K,) differ by no more than in a healthy run."""
    size = (first - second).abs()
    return times_the_noise(size.max().item(), size.mean().item(), noise, len(size)) <= WARN


def conclude(of_ranks: list[Findings]) -> str:
    """The first cause that explains the difference on each rank that has one; else what was excluded."""
    differing = [findings for findings in of_ranks if findings.differs]
    for cause in CAUSES:
        if differing and all(cause.name in findings.explained for findings in differing):
            return f"Cause ({cause.name}): the difference is gone {cause.when}. {cause.remedy}"
    errors = {name: text for findings in differing for name, text in findings.errors.items()}
    if "all" in errors:
        return f"The cause is not known, because the comparison could not be made again ({errors['all']})"
    numbers = next((findings.numbers for findings in differing if findings.numbers), None)
    if numbers is None:
        gone = "The difference is gone when the same tokens are computed once more"
        return f"{gone}: look for code that changes the models, or what was stored, between sampling and check"
    excluded = ", ".join(f"{x.name}, not tested: {errors[x.name]}" if x.name in errors else x.name for x in CAUSES)
    return (
        f"None of the known causes explains it alone (excluded: {excluded}). A token has log-probability "
        f"{numbers[0]:.6g} when tokens come one by one, and {numbers[1]:.6g} when all are read at once: report it with the model"
    )


def far_from_reference(rollout: Rollout) -> tuple[Rollout, Tensor]:
    """The rollout in segments, and its rows, those that are furthest from the reference first."""
    rollout = rollout.in_segments()
    size = apply_mask(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask).abs()
    return rollout, size.sum(dim=1).argsort(descending=True, stable=True).cpu()
