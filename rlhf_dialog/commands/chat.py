"""Talk to a trained agent in the terminal."""

import argparse
import io
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from rlhf_dialog.commands.command_line import TRUST_REMOTE_CODE, check_device, check_seed, exit_code_of, set_up_logging
from rlhf_dialog.commands.registering import REGISTER, register
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.terminal import visible

WELCOME = "Say something. `reset` starts a new dialogue, `quit` ends the program."
NOTICE = "(Your message holds a text that ends a turn or controls the model; a space replaces it.)"


def find_agent(root: Path = Path()) -> Path:
    """`ppo_agent`, else the newest `*/agent` under `run_results` and `runs`. Raises UserError when there is none."""
    if (root / "ppo_agent").is_dir():
        return root / "ppo_agent"
    found = [path for name in ("run_results", "runs") for path in (root / name).glob("*/agent") if path.is_dir()]
    if not found:
        raise UserError(
            "no agent found in ./ppo_agent, run_results/*/agent or runs/*/agent; train one, or set --agent DIR"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def converse(agent: ChatAgent, read: Callable[[str], str], write: Callable[[str], None]) -> None:
    """Read and answer messages until `quit` or the end of input."""
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
            if (said := agent.spoken(text)) != text:
                write(NOTICE)
            if said:
                reply = agent.chat(said, history)
                shown = reply.replace("\n", "\n         ")  # below the first line: no line of it can pass for a prompt
                write(f"> Agent: {shown or '(an empty reply)'}")
                history += [said, reply]


def at_temperature(sampling: Sampling, temperature: float) -> Sampling:
    """`sampling` at another temperature; at 0 it is greedy. Raises UserError for a negative or infinite temperature."""
    if not 0 <= temperature < math.inf:
        raise UserError(f"--temperature {temperature:g}: give 0 or more, for example 0.7")
    return replace(sampling, greedy=True) if temperature == 0 else replace(sampling, temperature=temperature)


def main(argv: list[str] | None = None) -> int:
    """The command `rlhf-dialog chat`, also run by chat.py; returns the exit code."""
    parser = argparse.ArgumentParser(description="Chat with a trained agent in the terminal.")
    parser.add_argument(
        "--agent",
        help="folder of the agent, or its name on the Hub (user/name); default: ./ppo_agent, else the newest agent in "
        "run_results and runs",
    )
    parser.add_argument("--tokenizer", help="folder of another tokenizer; default: the agent's own")
    parser.add_argument("--register", help=REGISTER)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default: 0)")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="below 1 the replies are surer and more alike; 0: always the most likely token (default: the agent's own)",
    )
    parser.add_argument("--trust_remote_code", action="store_true", help=TRUST_REMOTE_CODE)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args(argv)
    set_up_logging()
    return exit_code_of(lambda: _main(options), options.debug)


def _main(options: argparse.Namespace) -> None:
    check_seed(options.seed)
    check_device(options.device, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    if sys.stdout is None:
        raise UserError("standard output is closed, so no reply can be shown; leave it open")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a reply may hold what the terminal's encoding lacks
    if options.register:
        register(options.register)
    folder = options.agent or find_agent()
    torch.manual_seed(options.seed)
    agent = ChatAgent.load(folder, options.tokenizer, options.device, trust_remote_code=options.trust_remote_code)
    if options.temperature is not None:
        agent.sampling = at_temperature(agent.sampling, options.temperature)

    def write(text: str) -> None:
        print(visible(text), flush=True)

    write(f"Agent: {folder}")
    converse(agent, read_text, write)


def read_text(prompt: str) -> str:
    """One line of standard input. Raises EOFError at its end, UserError when it is not UTF-8 or cannot be read."""
    if sys.stdin is None:  # closed before the program began
        raise EOFError
    try:
        text = input(prompt)
        text.encode()  # under some locales Python reads other bytes as halves of characters
    except UnicodeError as error:
        raise UserError(f"standard input is not UTF-8 text ({error}); convert it, for example with iconv") from None
    except BrokenPipeError:  # of standard output
        raise
    except OSError as error:
        raise UserError(f"standard input cannot be read: {error}; use a terminal, a pipe or a file") from error
    return text
