"""Examples as token ids, and their log-probabilities under a policy and under the first version. B rows.

A response is encoded as in supervised fine-tuning and as it was sampled: the reply with the separator (or, with a chat template,
the end-of-turn token) that ends it. Log-probabilities are computed at temperature 1 over the whole vocabulary by the model as it
is now; those that were stored when an answer was sampled are never used.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.errors import MissingSplit
from rlhf_dialog.feedback.store.examples import Example, RatedAnswer
from rlhf_dialog.json_files import FAULTS, load_json
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.policy import Policy, num_positions, teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch


@dataclass(frozen=True)
class TokenizedExample:
    prompt: list[int]
    response: list[int]


class ExampleEncoder:
    """How an agent reads dialogues and answers."""

    def __init__(self, agent: ChatAgent):
        lm = agent.policy.lm
        self.encoder, self.context_size = agent.encoder, agent.settings.context_size
        self.positions, self.vocabulary = num_positions(lm), agent.policy.num_ids or num_embeddings(lm)

    def encode_answer(
        self, prompt_turns: Sequence[str], response: str, ids: Sequence[int] | None = None, system: str | None = None
    ) -> TokenizedExample:
        """The ids of an answer, which are those that were sampled where they still read as the response.

        Where both do not fit into the model's positions, the response loses tokens at its end, then the prompt at its beginning.
        """
        reply = list(ids) if ids is not None and self._reads(ids, response) else self.encoder.encode_reply(response)
        reply = reply[: self.positions and self.positions - 1]
        prompt = self.encoder.encode_prompt(prompt_turns[-self.context_size :], system)
        return TokenizedExample(prompt[-(self.positions - len(reply)) :] if self.positions else prompt, reply)

    def _reads(self, ids: Sequence[int], response: str) -> bool:
        known = all(0 <= one < self.vocabulary for one in ids)
        return known and self.encoder.reply_text(list(ids)) == response.strip()

    def encode_reply(self, prompt: Dialogue) -> TokenizedExample:
        """The reference of a prompt of the SFT data as its answer."""
        return self.encode_answer(prompt.prompt_turns, prompt.reference or "", system=prompt.system)

    def encode_example(self, example: Example) -> list[TokenizedExample]:
        """One row of an answer; two of a pair, the chosen one first."""
        prompt, system = example.prompt_turns, example.system
        if isinstance(example, RatedAnswer):
            return [self.encode_answer(prompt, example.response, example.ids, system)]
        return [
            self.encode_answer(prompt, example.chosen, example.chosen_ids, system),
            self.encode_answer(prompt, example.rejected, example.rejected_ids, system),
        ]

    def encode_rows(self, examples: Iterable[Example]) -> dict[str, TokenizedExample]:
        """The rows of all these examples by their `row_names`."""
        rows = ((row_names(example), self.encode_example(example)) for example in examples)
        return {name: row for names, parts in rows for name, row in zip(names, parts, strict=True)}


def row_names(example: Example) -> list[str]:
    """The names of the rows of an example: its event, and which side of a pair."""
    return [str(example.event)] if isinstance(example, RatedAnswer) else [f"{example.event}+", f"{example.event}-"]


def compute_logprobs(policy: Policy, rows: Sequence[TokenizedExample], pad_id: int) -> Tensor:
    """The log-probability of each response (B,), summed over its tokens."""
    prompts = TokenBatch.from_prompts([row.prompt for row in rows], pad_id, policy.lm.device)
    tokens = prompts.with_replies([row.response for row in rows])
    return teacher_forced(policy, tokens, temperature=1.0, with_entropy=False).logprobs.sum(dim=1)


@torch.no_grad()
def compute_logprobs_in_batches(
    policy: Policy, rows: Sequence[TokenizedExample], pad_id: int, batch_size: int
) -> Tensor:
    """`compute_logprobs` without a gradient (B,), on the host; rows of similar length are computed together."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt) + len(rows[i].response))
    logprobs = torch.zeros(len(rows), dtype=torch.float64)
    for start in range(0, len(rows), batch_size):
        part = order[start : start + batch_size]
        logprobs[part] = compute_logprobs(policy, [rows[i] for i in part], pad_id).double().cpu()
    return logprobs


class ReferenceLogprobs:
    """The log-probabilities of the bot's examples under the first version, which are computed once and kept in a file.

    `setting` says what they were computed with; a file of another setting is not used, nor what it holds of other token ids.
    """

    def __init__(self, policy: Policy, pad_id: int, batch_size: int, path: Path, setting: str):
        self.policy, self.pad_id, self.batch_size, self.path, self.setting = policy, pad_id, batch_size, path, setting
        self.logprobs: dict[str, float] = {}
        self.digests: dict[str, str] = {}  # of the token ids
        self.is_new = False
        try:
            found = load_json(self.path)
            if found["setting"] == self.setting:
                self.logprobs = {str(key): float(value) for key, value in found["logprobs"].items()}
                self.digests = {key: str(found["rows"][key]) for key in self.logprobs}
        except FAULTS:  # it is computed again
            self.logprobs = {}

    def add(self, rows: dict[str, TokenizedExample]) -> None:
        """Compute the rows of these names that are not known yet."""
        texts = {name: json.dumps([row.prompt, row.response]) for name, row in rows.items()}
        digests = {name: sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}
        missing = {name: row for name, row in rows.items() if self.digests.get(name) != digests[name]}
        self.digests |= digests
        if missing:
            values = compute_logprobs_in_batches(self.policy, list(missing.values()), self.pad_id, self.batch_size)
            self.logprobs |= dict(zip(missing, values.tolist(), strict=True))
            self.is_new = True

    def get(self, names: Sequence[str]) -> Tensor:
        """The log-probabilities (B,) of rows that were added, on the host."""
        return torch.tensor([self.logprobs[name] for name in names], dtype=torch.float64)

    def save(self, names: set[str]) -> None:
        """Write those of these names into the file, unless it holds them. Raises UserError when it cannot be written."""
        if self.is_new or set(self.logprobs) - names:
            self.logprobs = {name: value for name, value in self.logprobs.items() if name in names}
            self.digests = {name: self.digests[name] for name in self.logprobs}
            replace_json(self.path, {"setting": self.setting, "logprobs": self.logprobs, "rows": self.digests})
            self.is_new = False


@lru_cache(maxsize=4)
def sft_prompts(
    data_path: str, split: str, context_size: int, turn_separator: str, columns: tuple[tuple[str, str], ...] = ()
) -> list[Dialogue]:
    """The prompts of a split that have a reply; none where the data has no such split. Raises UserError as `PromptRules.load`."""
    rules = PromptRules(context_size, turn_separator=turn_separator, columns=dict(columns))
    try:
        found = rules.load(data_path, split)
    except MissingSplit:
        return []
    return [prompt for prompt in found if prompt.reference]
