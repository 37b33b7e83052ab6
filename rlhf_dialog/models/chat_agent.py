"""A trained agent, loaded from its folder with its settings, and replies that are shown while they grow."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ConfigDict
from torch import Tensor

from rlhf_dialog.config.schema import ClassConfig, Config
from rlhf_dialog.config.settings import AsksPrecision, ChatKeys, DataKeys, Precision, SamplingKeys, Settings
from rlhf_dialog.data import hub
from rlhf_dialog.data.agent_template import own_template, settings_in, stored_settings
from rlhf_dialog.data.chat_template import TurnEncoder, prompt_encoder, separator_of
from rlhf_dialog.data.dialogue import AUTO, CHAT_TEMPLATE, SEPARATOR, Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import damage_as_user_error, load_json
from rlhf_dialog.models.device import choose_device
from rlhf_dialog.models.generation import (
    Responder,
    ResponseBuffer,
    Sampling,
    StopRule,
    at_temperature,
    write_tokens,
)
from rlhf_dialog.models.loading import load_causal_lm, read_tokenizer
from rlhf_dialog.models.network import AGENT_FILE, num_embeddings, num_token_ids
from rlhf_dialog.models.policy import Policy, num_positions
from rlhf_dialog.models.precision import autocast_of, set_float32_products
from rlhf_dialog.models.pretrained import num_ids, warn_of_remote_code

logger = logging.getLogger(__name__)
AGENT_FORMAT = 1
K = TypeVar("K", bound=Settings)
AUTO_IS = "turn_separator: auto is %s: %s"


class AgentSettings(AsksPrecision, DataKeys, SamplingKeys, ChatKeys):
    """The settings in `rlhf_dialog.json` of an agent's folder; a folder without it gets the defaults."""

    model_config = ConfigDict(hide_input_in_errors=True)  # the file may be a link to one that holds secrets

    precision: Precision = "auto"  # that of its run
    model_class: ClassConfig | None = None  # the network of the user's whose weights lie beside the file


class ChatAgent(Responder):
    """A trained agent (or any causal LM folder) that answers dialogues.

    >>> agent = ChatAgent.load("./ppo_agent")  # or a name on the Hub
    >>> agent.chat("Do you have a room for tonight ?", history=["Good evening , sir .", "Good evening ."])
    """

    def __init__(self, policy: Policy, encoder: TurnEncoder, settings: AgentSettings, ends_loops: bool = False):
        """`ends_loops`: see `StopRule`."""
        sampling = configured_sampling(settings)
        stop = StopRule(policy, encoder.tokenizer, settings.turn_separator, settings.stop_token_ids, ends_loops)
        super().__init__(policy, encoder, sampling, stop, context_size=settings.context_size)
        self.settings = settings

    def set_precision(self, keys: AsksPrecision) -> None:
        """Draw replies as the keys ask; for `auto` in the precision of the agent's run, else as `precision_of` chooses."""
        asked, device = self.settings if keys.asked_precision == "auto" else keys, self.policy.lm.device
        set_float32_products(asked, device)
        self.policy.use_amp, self.policy.amp_dtype = autocast_of(asked, device).values()

    def set_system_prompt(self, text: str) -> None:
        """Write `text` as the system message of all dialogues without their own. Raises UserError where that cannot be."""
        self.settings = self.settings.model_copy(update={"system_prompt": text})
        encoder, separator = self.encoder, self.settings.turn_separator
        self.encoder = prompt_encoder(encoder.tokenizer, separator, encoder.max_prompt_length, text)

    def set_max_new_tokens(self, count: int) -> None:
        """Let replies have so many tokens, or as many as the model's positions leave beside a prompt."""
        positions = num_positions(self.policy.lm)
        if positions:
            count = min(count, positions - self.encoder.max_prompt_length)
        self.settings = self.settings.model_copy(update={"max_new_tokens": count})
        self.sampling = replace(self.sampling, max_new_tokens=count)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        tokenizer: str | None = None,
        device: str = "auto",
        settings: AgentSettings | None = None,
        trust_remote_code: bool = False,
        trust_config: bool = False,
        ends_loops: bool = False,
    ) -> "ChatAgent":
        """Load an agent from its folder, or from the Hub by its name (`user/name`); a folder of that name is preferred.

        `tokenizer` names another tokenizer, `settings` replace those of the agent's folder. Code in the folders is
        run only with `trust_remote_code`; a warning then names them. A network of your own is built with the folder's arguments
        only with `trust_config`. `ends_loops`: see `StopRule`. Raises UserError when model, tokenizer or settings cannot be
        loaded or do not fit together, and when a weight is NaN or infinite.
        """
        if trust_remote_code:
            warn_of_remote_code({"--agent": str(folder), "--tokenizer": tokenizer})
        folder = hub.model_folder(str(folder), "--agent", trust_remote_code)
        lm = load_causal_lm(folder, "--agent", trust_remote_code, trusted_classes=None if trust_config else ())
        settings = settings or read_settings(Path(folder))
        words = read_tokenizer(tokenizer or folder, "--agent", trust_remote_code)
        if settings.turn_separator == AUTO:
            separator = separator_of(words)
            settings = settings.model_copy(update={"turn_separator": separator})
            logger.info(AUTO_IS, separator, _REASONS[separator].format(tokenizer or folder))
        if num_ids(words) > (rows := num_embeddings(lm)):
            raise UserError(
                f"--agent: the tokenizer has {num_ids(words)} tokens, but '{folder}' has embeddings for only {rows}"
            )
        policy = Policy(lm).to(choose_device(device)).eval()
        policy.num_ids = num_token_ids(lm, words)
        positions, room = num_positions(lm), settings.max_prompt_length
        if positions:
            room = min(room, positions - settings.max_new_tokens)
        if room < 2:
            raise UserError(
                f"--agent: '{folder}' has {positions} positions, too few for {settings.max_new_tokens} new tokens"
            )
        encoder = prompt_encoder(words, settings.turn_separator, room, settings.system_prompt)
        agent = cls(policy, encoder, settings, ends_loops)
        agent.set_precision(settings)
        return agent

    def chat(self, text: str, history: list[str] | None = None) -> str:
        """The reply to `text` after the turns of `history`, oldest first; long histories lose their oldest turns.

        It is sampled as in the terminal and on the page (`chat_temperature`, `chat_top_p`); `reply` samples as training does.
        """
        turns = [turn.strip() for turn in [*(history or []), text]][-self.settings.context_size :]
        (reply,) = self.local(chat_sampling(self.settings)).reply([Dialogue(turns)])
        return reply.text


def configured_sampling(settings: SamplingKeys) -> Sampling:
    """The sampling that training and evaluation use."""
    return Sampling(settings.max_new_tokens, settings.temperature, settings.top_k, settings.top_p)


def chat_sampling(settings: Config | AgentSettings) -> Sampling:
    """The sampling wherever a person talks to the agent: in the terminal, on the page, with `ChatAgent.chat`."""
    sampling = at_temperature(settings.chat_temperature, configured_sampling(settings))
    return sampling if settings.chat_top_p is None else replace(sampling, top_p=settings.chat_top_p)


def read_settings(folder: Path, default: AgentSettings | None = None) -> AgentSettings:
    """The settings beside a model, those in its chat template where the file is missing, or `default`.

    Raises UserError when the file is damaged, newer than this program, or may not be opened (`found_files`).
    """
    check_files(folder)
    path = Path(os.path.expanduser(folder)) / AGENT_FILE
    stored = {} if path.is_file() else stored_settings(path.parent)
    if not (path.is_file() or stored):
        return default or AgentSettings()
    with damage_as_user_error(f"{path}: cannot be read: ", "; correct it, or remove it to use the defaults"):
        settings = stored or load_json(path)
        if (version := settings.pop("format_version", AGENT_FORMAT)) > AGENT_FORMAT:
            raise UserError(
                f"{path}: has format version {version}, but this program reads versions up to {AGENT_FORMAT}; update rlhf-dialog"
            )
        return AgentSettings(**settings)


_REASONS = {CHAT_TEMPLATE: "the tokenizer of '{}' has one", SEPARATOR: "the tokenizer of '{}' has no chat template"}


def settle_separator(keys: K, needs_model: bool = True) -> K:
    """The keys of a run or a stage with `turn_separator: auto` as what their model was trained with; a line says why.

    That is what the model's folder says (rlhf_dialog.json, or the settings in an agent's template), else the chat template of
    its tokenizer where it has one, else <EOU>. Raises UserError when folder or tokenizer cannot be read, and the model is needed.
    """
    if getattr(keys, "turn_separator", None) != AUTO:
        return keys
    args, prefix = (keys.env.args, "env.args.") if isinstance(keys, Config) else (keys, "")
    path, key = getattr(args, "tokenizer_path", None), f"{prefix}tokenizer_path"
    model_path = getattr(keys, "model_path", None)
    path, key = (path, key) if path else (model_path, "model_path")
    separator, why = SEPARATOR, "a new tokenizer has no chat template"
    try:
        if path is not None:
            tokenizer = read_tokenizer(path, key, getattr(keys, "trust_remote_code", False), as_saved=True)
            stored = (settings_in(tokenizer.chat_template) or {}).get("turn_separator", AUTO)
            model = model_path or path
            separator = read_settings(Path(model), AgentSettings(turn_separator=stored)).turn_separator
            why = f"as '{model}' says"
            if separator == AUTO:
                separator = CHAT_TEMPLATE if own_template(tokenizer.chat_template) else SEPARATOR
                why = _REASONS[separator].format(path)
    except UserError:
        if needs_model:
            raise
        why = f"'{path}' cannot be read, and is not needed"
    logger.info(AUTO_IS, separator, why)
    return keys.model_copy(update={"turn_separator": separator})


# -- a reply while it grows


@dataclass(frozen=True)
class GrowingReply:
    """A reply so far: `text` is shown as it is, and the text of the finished reply begins with it.

    `ids` are all tokens so far, with the end token, and `logprobs` theirs, under the distribution that they were sampled
    from; `truncated` says of a reply that has `ended` that the length limit ended it. Its prompt has `num_prompt_ids` tokens.

    >>> GrowingReply(text="Inside ,", ids=[14, 10], logprobs=[-1.2, -0.4], ended=False, truncated=False)
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ended: bool = False
    truncated: bool = False
    num_prompt_ids: int = 0


@torch.no_grad()
def stream(
    responder: Responder,
    turns: Sequence[Sequence[str]],
    show: Callable[[list[GrowingReply]], bool],
    uniform: Tensor,
    systems: Sequence[str | None] | None = None,
) -> None:
    """Answer the turns of each prompt, behind its system message; `show` gets all replies so far after each token, and returns
    whether to go on.

    The rows share one generation, and the replies are those that `Responder.reply` would give. `uniform` (B, T) are their
    `random_numbers`. Raises RunStopped when the policy's predictions are not finite.
    """
    encoder, prompts = responder.encoder, responder.encode(turns, systems)
    replies = [GrowingReply(num_prompt_ids=number) for number in prompts.prompt_mask.sum(dim=1).tolist()]

    def show_new(buffer: ResponseBuffer) -> bool:
        ids, mask, logprobs = buffer.written(buffer.seen - 1)
        alive = torch.zeros(len(turns), dtype=torch.bool)
        alive[buffer.host_rows] = buffer.alive
        for row, reply in enumerate(replies):
            if reply.ended:
                continue
            new_ids, new_logprobs = (x[row][mask[row]].tolist() for x in (ids, logprobs))
            all_ids, goes_on = (*reply.ids, *new_ids), bool(alive[row])
            ended = buffer.seen == buffer.shape[1] or not goes_on
            text = encoder.reply_text(list(all_ids))
            if not ended:
                text = certain(text, encoder)
                text = text if text.startswith(reply.text) else reply.text
            logprobs_so_far = (*reply.logprobs, *new_logprobs)
            replies[row] = GrowingReply(text, all_ids, logprobs_so_far, ended, ended and goes_on, reply.num_prompt_ids)
        return show(list(replies))

    uniform = uniform.to(prompts.device)
    write_tokens(responder.policy, responder.sampling, responder.stop, responder.limits, prompts, uniform, show_new)


def certain(text: str, encoder: TurnEncoder) -> str:
    """The beginning of a reply's text that no later token changes.

    Left out are a part of a letter, a beginning of the separator, and white space at the end; and the last word where
    the tokenizer's clean-up moves the next one closer (`do n't` to `don't`).
    """
    if getattr(encoder.tokenizer, "clean_up_tokenization_spaces", False):
        text = text.rpartition(" ")[0]
    separator = getattr(encoder, "separator", "")
    while True:
        held = next((n for n in range(len(separator) - 1, 0, -1) if text.endswith(separator[:n])), 0)
        shorter = text[: len(text) - held].rstrip().rstrip("\ufffd")
        if shorter == text:
            return text
        text = shorter
