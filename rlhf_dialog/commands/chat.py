"""Talk to an agent in the terminal; what people say of a bot's answers is stored."""

import io
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlhf_dialog import wings
from rlhf_dialog.commands.chat_screen import ENDS, AnsweringTalk, Screen, show_answer, split_command
from rlhf_dialog.commands.command_line import TRUST_REMOTE_CODE, check_device, check_seed
from rlhf_dialog.commands.options import REGISTER, PrecisionOption, option, register, run_command
from rlhf_dialog.commands.terminal_state import edit_lines, forget_lines, is_terminal
from rlhf_dialog.data.hub import check_folder
from rlhf_dialog.errors import UserError
from rlhf_dialog.terminal import visible

WELCOME = "Type a message. `reset` starts a new dialogue, `quit` ends the program, and /help lists the other commands."
NOTICE = "(Your message holds a text that ends a turn or controls the model; a space replaces it.)"


def find_agent(root: Path = Path()) -> Path:
    """`ppo_agent`, else the newest `*/agent` or bot under `run_results` and `runs`. Raises UserError when there is none."""
    if (root / "ppo_agent").is_dir():
        return root / "ppo_agent"
    places = [root / name for name in ("run_results", "runs")]
    agents = {path: path for place in places for path in place.glob("*/agent") if path.is_dir()}
    agents |= wings.for_chat("bots")(places)
    if not agents:
        raise UserError(
            "no agent found in ./ppo_agent, run_results/*/agent or runs/*/agent, and no bot in run_results or runs; train "
            "one, or set --agent DIR"
        )
    return max(agents, key=lambda folder: agents[folder].stat().st_mtime)


def converse(begin: Callable[[], AnsweringTalk], read: Callable[[str], str], screen: Screen) -> None:
    """Read and answer messages until `quit` or the end of input; `begin` starts a dialogue."""
    screen.write(WELCOME)
    talk = begin()
    try:
        while True:
            try:
                text = read("> User: ").strip()
            except EOFError:
                screen.write("")
                return
            word = split_command(text)[0] or text.lower()
            if word in ENDS:
                return
            if word == "reset":
                talk.end()
                version, talk = talk.version, begin()
                screen.write(WELCOME)
                if talk.version != version:
                    screen.note(f"version {talk.version} answers now")
            elif text.startswith("/") and not text.startswith("//"):
                wings.for_chat("words")(talk, text, screen)
            elif text:
                said = text.removeprefix("/")
                if (message := talk.spoken(said)) != said:
                    screen.write(NOTICE)
                if message:
                    show_answer(talk, talk.say(message), screen)
    finally:
        talk.end()


class ChatOptions(PrecisionOption):
    description = "Chat with an agent in the terminal, and teach a bot by rating it."

    agent: str | None = option(
        "folder of an agent, a training run, a bot (made by rlhf-dialog feedback init) or a chat model, or a name on the "
        "Hub (user/name); default: ./ppo_agent, else the newest agent or bot in run_results and runs"
    )
    environment: str | None = option(
        "play the user of an environment, which shows a goal and in the end whether it was reached; name (restaurant) "
        "or path of a domain",
        metavar="DOMAIN",
    )
    tokenizer: str | None = option("folder of another tokenizer; default: the agent's own")
    register: str | None = option(REGISTER)
    seed: int | None = option("seed of the sampling (default: 0; for a bot, a new one each time)")
    temperature: float | None = option(
        "sampling temperature; 0: always the most likely token (default: chat_temperature of the "
        "agent, else its temperature)",
        metavar="T",
    )
    system_prompt: str | None = option(
        "system message of the chat (default: that of the agent, else that of its chat template)", metavar="TEXT"
    )
    trust_remote_code: bool = option(TRUST_REMOTE_CODE)
    trust_config: bool = option(
        "build a network of your own (--register) with the arguments that the agent's folder names, and "
        "follow an agent folder of a run that is a link out of the run"
    )


def run(options: ChatOptions) -> None:
    """Talk until the person ends it."""
    _check(options)
    if options.register:
        register(options.register)
    with wings.for_chat("partner")(str(options.agent or find_agent()), options) as partner:
        screen = Screen(partial(_show, end="\n"), _show if is_terminal() else None, forget_lines)
        for line in partner.introduction():
            screen.write(line)
        edit_lines()
        if options.environment:
            wings.for_chat("environment")(options.environment, partner.begin, read_text, screen, options.seed)
            return
        converse(partner.begin, read_text, screen)


def _check(options: ChatOptions) -> None:
    """Raises UserError for options that cannot be."""
    check_seed(options.seed or 0)
    check_device(options.device)
    temperature = options.temperature
    if temperature is not None and not 0 <= temperature < math.inf:
        raise UserError(f"--temperature {temperature:g}: give 0 or more, for example 0.7")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a reply may hold what the terminal's encoding lacks
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.isatty():
        sys.stdin.reconfigure(errors="replace")  # a wrong byte that was typed or pasted does not end the chat
    if options.agent and not Path(options.agent).expanduser().is_dir():
        check_folder(options.agent, "--agent")


def _show(text: str, end: str = "") -> None:
    print(visible(text), end=end, flush=True)


def read_text(prompt: str) -> str:
    """One line of standard input. Raises EOFError at its end, UserError when it is not UTF-8."""
    try:
        text = input(prompt)
        text.encode()  # under some locales Python reads other bytes as halves of characters
    except UnicodeError as error:
        raise UserError(f"standard input is not UTF-8 text ({error}); convert it, for example with iconv") from None
    return text


main = partial(run_command, ChatOptions, run)  # the command line; returns the exit code
