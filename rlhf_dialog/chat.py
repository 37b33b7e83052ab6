"""Talk to a trained agent: `ChatAgent` from Python, `main` in the terminal."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import ValidationError

from rlhf_dialog.chat_template import TurnEncoder, prompt_encoder
from rlhf_dialog.checkpoint import AGENT_FILE, FORMAT_VERSION
from rlhf_dialog.cli import exit_code_of, set_up_logging
from rlhf_dialog.errors import UserError
from rlhf_dialog.generation import Sampling, StopRule, respond
from rlhf_dialog.models import load_causal_lm, num_embeddings, read_tokenizer
from rlhf_dialog.policy import Policy
from rlhf_dialog.prompts import collate
from rlhf_dialog.rollout import decode_response
from rlhf_dialog.schema import DataKeys, SamplingKeys

WELCOME = "Say something. `reset` starts anew, `quit` ends."


class AgentSettings(DataKeys, SamplingKeys):
    """What `rlhf_dialog.json` of an agent's folder says; a folder without it gets the defaults."""


class ChatAgent:
    """A trained agent (or any causal LM folder) that answers.

    >>> agent = ChatAgent.load("./ppo_agent")
    >>> agent.chat("Do you have a room for tonight ?", history=["Good evening , sir .", "Good evening ."])
    """

    def __init__(self, policy: Policy, encoder: TurnEncoder, settings: AgentSettings):
        self.policy, self.encoder, self.settings = policy, encoder, settings
        self.sampling = Sampling(settings.max_new_tokens, settings.temperature, settings.top_k, settings.top_p)
        self.stop = StopRule(policy, encoder.tokenizer, settings.turn_separator)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        tokenizer: str | None = None,
        device: str = "cpu",
        settings: AgentSettings | None = None,
    ) -> "ChatAgent":
        """Load an agent; `tokenizer` names another tokenizer folder, `settings` replace those of the agent's folder.

        Raises UserError when that cannot be done.
        """
        lm = load_causal_lm(str(folder), "--agent")
        settings = settings or read_settings(Path(folder))
        words = read_tokenizer(tokenizer or str(folder), "--agent")
        if len(words) > (rows := num_embeddings(lm)):
            raise UserError(f"--agent: the tokenizer has {len(words)} tokens, but '{folder}' has embeddings for {rows}")
        positions = getattr(lm.config, "max_position_embeddings", None)
        room = settings.max_prompt_length
        if positions:
            room = min(room, positions - settings.max_new_tokens)
        if room < 2:
            raise UserError(
                f"--agent: '{folder}' has {positions} positions, too few for {settings.max_new_tokens} new tokens"
            )
        return cls(Policy(lm).to(device).eval(), prompt_encoder(words, settings.turn_separator, room), settings)

    @torch.no_grad()
    def chat(self, text: str, history: list[str] | None = None) -> str:
        """The reply to `text` after the turns of `history`, oldest first; long histories lose their oldest turns."""
        turns = [turn.strip() for turn in [*(history or []), text]][-self.settings.context_size :]
        prompt_ids, prompt_mask = collate([self.encoder.encode_prompt(turns)], self.encoder.pad_id)
        device = self.policy.lm.device
        responses = respond(
            self.policy, prompt_ids.to(device), prompt_mask.to(device), self.sampling, self.stop, self.encoder.pad_id
        )
        return decode_response(self.encoder, responses.ids[0][responses.mask[0]].tolist())


def read_settings(folder: Path, default: AgentSettings | None = None) -> AgentSettings:
    """The settings beside a model, or `default`. Raises UserError when the file is damaged, or newer than this program."""
    path = folder / AGENT_FILE
    if not path.is_file():
        return default or AgentSettings()
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if (version := settings.pop("format_version", FORMAT_VERSION)) > FORMAT_VERSION:
            raise UserError(
                f"{path}: has format version {version}, this program reads up to {FORMAT_VERSION}; update rlhf-dialog"
            )
        return AgentSettings(**settings)
    except (OSError, ValueError, AttributeError, TypeError, ValidationError) as error:
        raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def find_agent(root: Path = Path()) -> Path:
    """`ppo_agent`, else the newest `*/agent` under `run_results` and `runs`. Raises UserError when there is none."""
    if (root / "ppo_agent").is_dir():
        return root / "ppo_agent"
    found = [path for name in ("run_results", "runs") for path in (root / name).glob("*/agent") if path.is_dir()]
    if not found:
        raise UserError(
            "no agent here: neither ./ppo_agent nor run_results/*/agent nor runs/*/agent; train one, or give --agent DIR"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def converse(agent: ChatAgent, read: Callable[[str], str], write: Callable[[str], None]) -> None:
    """Read and answer until `quit` or the end of input."""
    write(WELCOME)
    history: list[str] = []
    while True:
        try:
            text = read("> User: ").strip()
        except EOFError:
            write("")
            return
        command = text.lower().removeprefix("/")
        if command in ("quit", "exit"):
            return
        if command == "reset":
            history = []
            write(WELCOME)
        elif text:
            reply = agent.chat(text, history)
            write(f"> Agent: {reply or '(an empty reply)'}")
            history += [text, reply]


def main(argv: list[str] | None = None) -> int:
    """The command `rlhf-dialog chat`, which chat.py runs too; returns the exit code."""
    parser = argparse.ArgumentParser(description="Chat with a trained agent in the terminal.")
    parser.add_argument(
        "--agent", help="folder of the agent; default: ./ppo_agent, else the newest one of run_results and runs"
    )
    parser.add_argument("--tokenizer", help="another tokenizer folder than the agent's own")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default: 0)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args(argv)
    set_up_logging()
    return exit_code_of(lambda: _main(options), options.debug)


def _main(options: argparse.Namespace) -> None:
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch finds no CUDA device here; leave it out")
    folder = options.agent or find_agent()
    torch.manual_seed(options.seed)
    agent = ChatAgent.load(folder, options.tokenizer, options.device)

    def write(text: str) -> None:
        print(text, flush=True)

    write(f"Agent: {folder}")
    converse(agent, input, write)
