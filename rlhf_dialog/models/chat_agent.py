"""Load a policy and let it answer dialogues. B dialogues, P prompt tokens."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ConfigDict
from torch import Tensor

from rlhf_dialog.config.chat_keys import ChatKeys, DataKeys, SamplingKeys
from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.data import hub
from rlhf_dialog.data.chat_template import TurnEncoder, control_tokens, prompt_encoder
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue, remove_marks
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.device_copies import fetch, send
from rlhf_dialog.models.generation import Responses, Sampling, StopRule, respond
from rlhf_dialog.models.loading import load_causal_lm, read_tokenizer
from rlhf_dialog.models.network import AGENT_FILE
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.pretrained import num_ids, warn_of_remote_code
from rlhf_dialog.models.sizes import num_embeddings, num_positions

AGENT_FORMAT = 1


@dataclass(frozen=True)
class Reply:
    """One answer: the text that rewards and metrics see (cut at the separator, without special tokens, stripped), its ids.

    >>> Reply(text="Inside , please .", ids=[14, 10, 1449, 764, 50257], truncated=False)
    """

    text: str
    ids: list[int]  # of the policy, including its end token
    truncated: bool  # cut at `max_new_tokens`


@dataclass(eq=False)
class Speaker:
    """A policy with everything it needs to answer: how turns become tokens and back, how tokens are sampled, when a reply ends.

    `rows_at_once` limits the memory of the key-value cache, `microbatch_size` that of reading prompts; neither changes the
    sampled tokens. `context_size`: turns of a dialogue with an environment that a reply sees; None: all for which there is room.
    """

    policy: Policy
    encoder: TurnEncoder
    sampling: Sampling
    stop: StopRule
    rows_at_once: int = 128
    microbatch_size: int = 16
    context_size: int | None = None

    def encode(self, turns: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Prompt ids and mask, each (B, P), left padded, on the policy's device."""
        return self.batch([self.encoder.encode_prompt(some) for some in turns])

    def batch(self, ids: list[list[int]]) -> tuple[Tensor, Tensor]:
        """As `encode`, for prompts that are already ids."""
        prompt_ids, prompt_mask = collate(ids, self.encoder.pad_id)
        device = self.policy.lm.device
        return send(prompt_ids, device), send(prompt_mask, device)

    def write(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        uniform: Tensor | None = None,
        prompt_numbers: Tensor | None = None,
    ) -> Responses:
        """One response to each prompt, sampled from torch's global random state, or with the `random_numbers` that are given.

        Rows with the same of `prompt_numbers` (B,), on the host, have the same prompt.
        """
        return respond(
            self.policy,
            prompt_ids,
            prompt_mask,
            self.sampling,
            self.stop,
            self.encoder.pad_id,
            self.rows_at_once,
            self.microbatch_size,
            uniform=uniform,
            prompt_numbers=prompt_numbers,
        )

    def respond(
        self, turns: Sequence[Sequence[str]], uniform: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Responses]:
        """Answer the turns of each prompt: prompt ids and mask, each (B, P), and the responses."""
        prompt_ids, prompt_mask = self.encode(turns)
        return prompt_ids, prompt_mask, self.write(prompt_ids, prompt_mask, uniform)

    def read(self, responses: Responses) -> list[Reply]:
        """The responses as text, without masked tokens."""
        ids, mask, ends = fetch(responses.ids, responses.mask, responses.truncated)
        found = [row[counts].tolist() for row, counts in zip(ids, mask, strict=True)]
        return [Reply(self.encoder.reply_text(row), row, end) for row, end in zip(found, ends.tolist(), strict=True)]

    def reply(self, dialogues: Sequence[Dialogue], uniform: Tensor | None = None) -> list[Reply]:
        """Answer each dialogue after all that has been said in it."""
        turns = [[*d.prompt_turns, *(turn.text for turn in d.turns)] for d in dialogues]
        return self.read(self.respond(turns, uniform)[2])


class AgentSettings(DataKeys, SamplingKeys, ChatKeys):
    """The settings in `rlhf_dialog.json` of an agent's folder; a folder without it gets the defaults."""

    model_config = ConfigDict(hide_input_in_errors=True)  # the file may be a link to one that holds secrets

    model_class: ClassConfig | None = None  # the network of the user's whose weights lie beside the file


class ChatAgent(Speaker):
    """A trained agent (or any causal LM folder) that answers dialogues.

    >>> agent = ChatAgent.load("./ppo_agent")  # or a name on the Hub
    >>> agent.chat("Do you have a room for tonight ?", history=["Good evening , sir .", "Good evening ."])
    """

    def __init__(self, policy: Policy, encoder: TurnEncoder, settings: AgentSettings):
        sampling = Sampling(settings.max_new_tokens, settings.temperature, settings.top_k, settings.top_p)
        stop = StopRule(policy, encoder.tokenizer, settings.turn_separator, settings.stop_token_ids)
        super().__init__(policy, encoder, sampling, stop, context_size=settings.context_size)
        self.settings = settings
        self._marks = control_tokens(encoder.tokenizer, ())

    @classmethod
    def load(
        cls,
        folder: str | Path,
        tokenizer: str | None = None,
        device: str = "cpu",
        settings: AgentSettings | None = None,
        trust_remote_code: bool = False,
        trust_config: bool = False,
    ) -> "ChatAgent":
        """Load an agent from its folder, or from the Hub by its name (`user/name`); a folder of that name is preferred.

        `tokenizer` names another tokenizer, `settings` replace those of the agent's folder. Code in the folders is
        run only with `trust_remote_code`; a warning then names them. A network of your own is built with the folder's arguments
        only with `trust_config`, or where its class says what they reach. Raises UserError when model, tokenizer or settings
        cannot be loaded or do not fit together, and when a weight is NaN or infinite.
        """
        if trust_remote_code:
            warn_of_remote_code({"--agent": str(folder), "--tokenizer": tokenizer})
        folder = hub.model_folder(str(folder), "--agent", trust_remote_code)
        lm = load_causal_lm(folder, "--agent", trust_remote_code, trust_config=trust_config)
        settings = settings or read_settings(Path(folder))
        words = read_tokenizer(tokenizer or folder, "--agent", trust_remote_code)
        if num_ids(words) > (rows := num_embeddings(lm)):
            raise UserError(
                f"--agent: the tokenizer has {num_ids(words)} tokens, but '{folder}' has embeddings for only {rows}"
            )
        policy = Policy(lm).to(device).eval()
        positions, room = num_positions(lm), settings.max_prompt_length
        if positions:
            room = min(room, positions - settings.max_new_tokens)
        if room < 2:
            raise UserError(
                f"--agent: '{folder}' has {positions} positions, too few for {settings.max_new_tokens} new tokens"
            )
        return cls(policy, prompt_encoder(words, settings.turn_separator, room, settings.system_prompt), settings)

    def behind(self, system_prompt: str | None) -> "ChatAgent":
        """The same model behind another system prompt; None: the template's own. Raises UserError without a chat template."""
        if self.settings.turn_separator != CHAT_TEMPLATE:
            raise UserError(
                f"a system prompt needs a model with a chat template; this one separates turns by "
                f"{self.settings.turn_separator!r}"
            )
        encoder = prompt_encoder(self.encoder.tokenizer, CHAT_TEMPLATE, self.encoder.max_prompt_length, system_prompt)
        return ChatAgent(self.policy, encoder, self.settings.model_copy(update={"system_prompt": system_prompt}))

    def spoken(self, text: str) -> str:
        """`text` as the model sees it: a space replaces what would end a turn, and the tokenizer's special tokens."""
        return remove_marks(self.encoder.spoken(text), self._marks)

    def chat(self, text: str, history: list[str] | None = None) -> str:
        """The reply to `text` after the turns of `history`, oldest first; long histories lose their oldest turns."""
        turns = [turn.strip() for turn in [*(history or []), text]][-self.settings.context_size :]
        (reply,) = self.reply([Dialogue(turns)])
        return reply.text


def collate(prompts_ids: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """`prompt_ids (B, P)`, long, and `prompt_mask (B, P)`, bool; left padded to the longest prompt."""
    num_tokens = max(map(len, prompts_ids), default=0)
    prompt_ids = torch.full((len(prompts_ids), num_tokens), pad_id, dtype=torch.long)
    prompt_mask = torch.zeros((len(prompts_ids), num_tokens), dtype=torch.bool)
    for row, ids in enumerate(prompts_ids):
        start = num_tokens - len(ids)
        prompt_ids[row, start:] = torch.tensor(ids, dtype=torch.long)
        prompt_mask[row, start:] = True
    return prompt_ids, prompt_mask


def collate_replies(replies_ids: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """`response_ids (B, T)` and `response_mask (B, T)`, as `collate`, but right padded."""
    ids, mask = collate([ids[::-1] for ids in replies_ids], pad_id)
    return ids.flip(1), mask.flip(1)


def read_settings(folder: Path, default: AgentSettings | None = None) -> AgentSettings:
    """The settings beside a model, or `default`. Raises UserError when the file is damaged, or newer than this program."""
    path = Path(os.path.expanduser(folder)) / AGENT_FILE
    if not path.is_file():
        return default or AgentSettings()
    try:
        settings = load_json(path)
        if (version := settings.pop("format_version", AGENT_FORMAT)) > AGENT_FORMAT:
            raise UserError(
                f"{path}: has format version {version}, but this program reads versions up to {AGENT_FORMAT}; update rlhf-dialog"
            )
        return AgentSettings(**settings)
    except UserError:
        raise
    except Exception as error:  # of any kind: the file may hold anything
        raise UserError(
            f"{path}: cannot be read: {' '.join(str(error).split())}; correct it, or remove it to use the defaults"
        ) from error
