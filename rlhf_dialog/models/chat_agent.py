"""Load a policy and let it answer dialogues."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict
from torch import Tensor

from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.config.settings import ChatKeys, DataKeys, SamplingKeys
from rlhf_dialog.data import hub
from rlhf_dialog.data.chat_template import TurnEncoder, control_tokens, prompt_encoder
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue, remove_marks
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.device_copies import fetch
from rlhf_dialog.models.dimensions import num_embeddings
from rlhf_dialog.models.generation import GenerationLimits, Responses, Sampling, StopRule, respond
from rlhf_dialog.models.loading import load_causal_lm, read_tokenizer
from rlhf_dialog.models.network import AGENT_FILE
from rlhf_dialog.models.policy import Policy, num_positions
from rlhf_dialog.models.pretrained import num_ids, warn_of_remote_code
from rlhf_dialog.models.token_batch import TokenBatch

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
class Responder:
    """A policy with everything it needs to answer: how turns become tokens and back, how tokens are sampled, when a reply ends.

    `context_size`: turns of a dialogue with an environment that a reply sees; None: all for which there is room.
    """

    policy: Policy
    encoder: TurnEncoder
    sampling: Sampling
    stop: StopRule
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    context_size: int | None = None

    def encode(self, turns: Sequence[Sequence[str]]) -> TokenBatch:
        """The prompts of these turns, oldest first, on the policy's device."""
        return self.batch([self.encoder.encode_prompt(turns_of_row) for turns_of_row in turns])

    def batch(self, ids: Sequence[Sequence[int]], prompt_groups: Tensor | None = None) -> TokenBatch:
        """As `encode`, for prompts that are already ids."""
        return TokenBatch.from_prompts(ids, self.encoder.pad_id, self.policy.lm.device, prompt_groups)

    def generate(self, prompts: TokenBatch, uniform: Tensor | None = None) -> Responses:
        """One response to each prompt, sampled from torch's global random state, or with these `random_numbers`."""
        return respond(self.policy, prompts, self.sampling, self.stop, self.limits, uniform)

    def read(self, responses: Responses) -> list[Reply]:
        """The responses as text, without masked tokens."""
        (ids,) = fetch(responses.tokens.response_ids)
        rows = [row[mask].tolist() for row, mask in zip(ids, responses.tokens.response_mask, strict=True)]
        ends = responses.truncated.tolist()
        return [Reply(self.encoder.reply_text(row), row, end) for row, end in zip(rows, ends, strict=True)]

    def reply(self, dialogues: Sequence[Dialogue], uniform: Tensor | None = None) -> list[Reply]:
        """Answer each dialogue after all that has been said in it."""
        turns = [[*d.prompt_turns, *(turn.text for turn in d.turns)] for d in dialogues]
        return self.read(self.generate(self.encode(turns), uniform))


class AgentSettings(DataKeys, SamplingKeys, ChatKeys):
    """The settings in `rlhf_dialog.json` of an agent's folder; a folder without it gets the defaults."""

    model_config = ConfigDict(hide_input_in_errors=True)  # the file may be a link to one that holds secrets

    model_class: ClassConfig | None = None  # the network of the user's whose weights lie beside the file


class ChatAgent(Responder):
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
        lm = load_causal_lm(folder, "--agent", trust_remote_code, trusted_classes=None if trust_config else ())
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

    def with_system_prompt(self, system_prompt: str | None) -> "ChatAgent":
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
