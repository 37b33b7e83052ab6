"""The comparison behind a failed check, made again on a few responses: token by token as they were sampled, and all at once.

B responses, T of their tokens, K predictions, V vocabulary.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rlhf_dialog.models.decoding import new_decoder
from rlhf_dialog.models.generation import Sampling, StopRule, sampling_context, scores_of
from rlhf_dialog.models.logprobs import at_least_float32, predict
from rlhf_dialog.models.masks import last_token
from rlhf_dialog.models.packed_rows import Packed, pack
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.sizes import num_positions
from rlhf_dialog.training.checks import WARN, times_the_noise
from rlhf_dialog.training.noise import Noise
from rlhf_dialog.training.rollout import Rollout

ROWS, COLUMNS = 8, 64  # responses of each process, and tokens of each


@dataclass(frozen=True)
class Batch:
    """Prompts (B, P), and the first tokens of their responses (B, T); masks and `numbers` (B,) lie on the host."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    mask: Tensor
    numbers: Tensor
    support: Tensor | None
    recorded: Tensor  # (B, T), the log-probabilities that sampling stored

    @cached_property
    def packed(self) -> Packed:
        return pack(self.prompt_ids, self.prompt_mask, self.response_ids, self.mask, self.numbers)

    @property
    def kept(self) -> Tensor | None:
        return None if self.support is None else self.packed.gather(self.support)

    def row(self, i: int) -> "Batch":
        """One response without padding."""
        start, end = int(self.prompt_mask[i].int().argmax()), int(last_token(self.mask[i : i + 1])) + 1
        return self.part([i], start, end)

    def part(self, rows: list[int], start: int, end: int) -> "Batch":
        """Some rows, with the columns of prompts from `start` on, and those of responses up to `end`."""
        at = torch.tensor(rows, dtype=torch.long, device=self.prompt_ids.device)
        of_host = torch.tensor(rows, dtype=torch.long)
        return Batch(
            self.prompt_ids[at, start:],
            self.prompt_mask[of_host, start:],
            self.response_ids[at, :end],
            self.mask[of_host, :end],
            self.numbers[of_host],
            None if self.support is None else self.support[at, :end],
            self.recorded[at, :end],
        )

    def with_ids(self, token: int, to: int) -> "Batch":
        """Each `token` replaced by `to`."""
        prompts, responses = (x.masked_fill(x == token, to) for x in (self.prompt_ids, self.response_ids))
        return replace(self, prompt_ids=prompts, response_ids=responses)

    def padded_with(self, token: int) -> "Batch":
        """The prompts padded with this token."""
        padding = ~self.prompt_mask.to(self.prompt_ids.device)
        return replace(self, prompt_ids=self.prompt_ids.masked_fill(padding, token))


def batch_of(rollout: Rollout, rows: Tensor, positions: int | None) -> Batch:
    """The first COLUMNS tokens of at most ROWS responses of a rollout in segments, for a model of that many `positions`."""
    prompt_mask, mask = rollout.masks_on_host
    whole = Batch(
        rollout.prompt_ids,
        prompt_mask,
        rollout.response_ids,
        mask,
        rollout.prompt_numbers,
        rollout.support,
        rollout.logprobs,
    )
    chosen = rows[mask[rows, :COLUMNS].any(dim=1)][:ROWS]
    if not len(chosen):
        return whole.part([], 0, COLUMNS)
    start = int(prompt_mask[chosen].any(dim=0).int().argmax())
    longest = int(prompt_mask[chosen].sum(dim=1).max())
    end = min(int(last_token(mask[chosen]).max()) + 1, COLUMNS, positions - longest if positions else COLUMNS)
    return whole.part(chosen.tolist(), start, end)


@dataclass(frozen=True)
class Comparison:
    """The policy as it samples, against `other`, which reads the same tokens: its reference, or the policy in the update.

    What is computed has no gradient, except where `other` is the policy: there it is computed as for one, and dropped.
    """

    policy: Policy
    other: Policy
    batch: Batch
    sampling: Sampling
    stop: StopRule
    temperature: float  # of the update
    noise: Noise

    def written(self, batch: Batch | None = None, steps: AbstractContextManager[None] | None = None) -> Tensor:
        """The policy's logits (K, V), token by token; after the prompts inside of `steps`."""
        batch = batch or self.batch
        features = []
        with torch.no_grad(), sampling_context(self.policy, batch.prompt_ids):
            decoder = new_decoder(
                self.policy,
                batch.prompt_ids,
                batch.prompt_mask,
                batch.response_ids.shape[1],
                len(batch.prompt_ids),
                batch.numbers,
            )
            with steps or nullcontext():
                for t in range(batch.response_ids.shape[1]):
                    features.append(decoder.features)
                    if t + 1 < batch.response_ids.shape[1]:
                        decoder.step(batch.response_ids[:, t])
            return at_least_float32(self.policy.logits(batch.packed.gather(torch.stack(features, dim=1))))

    def read(self, batch: Batch | None = None, of: Policy | None = None) -> Tensor:
        """The logits (K, V) of `other`, or of another policy, all tokens at once."""
        batch, reader = batch or self.batch, of or self.other
        with torch.set_grad_enabled(reader is self.policy):
            features, _ = reader.features(batch.packed)
            return at_least_float32(reader.logits(features)).detach()

    def logprobs(self, logits: Tensor, batch: Batch | None = None) -> Tensor:
        """The log-probabilities (K,) of the targets, as the update computes them."""
        batch = batch or self.batch
        return predict(logits, batch.packed.targets, self.temperature, batch.kept, with_entropy=False)[0]

    @property
    def recorded(self) -> Tensor:
        """The log-probabilities (K,) that sampling stored."""
        return self.batch.packed.gather(self.batch.recorded)

    def sampled(self, logits: Tensor) -> Tensor:
        """The log-probabilities (K,) of the distribution that the sampling of the run makes of these logits."""
        packed, filters = self.batch.packed, self.sampling.filters()
        columns = packed.scatter(logits)
        scores = [
            scores_of(columns[:, t], self.batch.response_ids, t, self.sampling, self.stop, filters)
            for t in range(columns.shape[1])
        ]
        whole = packed.gather(torch.stack(scores, dim=1)).log_softmax(dim=-1)
        return whole.gather(1, packed.targets.unsqueeze(1)).squeeze(1)

    def equal(self, first: Tensor, second: Tensor) -> bool:
        """Whether two tensors (K,) of log-probabilities differ by no more than a healthy run does."""
        if not len(first):
            return True
        size = (first - second).abs()
        return times_the_noise(size.max().item(), size.mean().item(), self.noise, len(size)) <= WARN

    def agree(
        self,
        batch: Batch | None = None,
        writing: AbstractContextManager[None] | None = None,
        steps: AbstractContextManager[None] | None = None,
        reading: AbstractContextManager[None] | None = None,
    ) -> bool:
        """Whether both sides, computed now, give the same; each inside of its block."""
        with writing or nullcontext():
            written = self.logprobs(self.written(batch, steps), batch)
        with reading or nullcontext():
            return self.equal(written, self.logprobs(self.read(batch), batch))

    @cached_property
    def now(self) -> tuple[Tensor, Tensor]:
        """The logits (K, V) of both sides as the models are, token by token and all at once."""
        return self.written(), self.read()

    @cached_property
    def is_back(self) -> bool:
        """Whether both sides differ when they are computed once more."""
        written, read = (self.logprobs(x) for x in self.now)
        return not self.equal(written, read)

    @cached_property
    def is_equal(self) -> bool:
        """Whether these responses show no difference at all: another process has those that do."""
        return not self.is_back and self.equal(self.recorded, self.logprobs(self.now[1]))

    @property
    def last_position(self) -> int | None:
        positions = num_positions(self.policy.lm)
        return positions - 1 if positions else None
