"""A chat in the terminal: who answers in it, and the words that begin with a slash, with which a person rates and steers it."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cached_property, partial
from pathlib import Path

from rlhf_dialog.commands.chat import ChatOptions
from rlhf_dialog.commands.chat_screen import Screen, show_answer, split_command
from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.data import hub
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.feedback.sessions.loaded_versions import load_agent
from rlhf_dialog.feedback.store.bot import Bot, is_bot
from rlhf_dialog.found_files import agent_folder
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import at_temperature

WORDS = {  # word: its arguments, what it does
    "good": ("[REASON]", "you like the last answer"),
    "bad": ("[REASON]", "you do not like the last answer"),
    "score": ("NUMBER", "give the last answer 1 to 5; 4 and 5 are liked, 1 and 2 disliked"),
    "edit": ("TEXT", "write what the last answer should be; the dialogue goes on with it"),
    "again": ("", "another answer to your last message"),
    "choose": ("NUMBER", "of several answers, this one is the best; the dialogue goes on with it"),
    "why": ("", "what the last answer came from"),
    "forget": ("me", "remove all that is stored of you"),
    "help": ("", "show these words"),
    "reset": ("", "start a new dialogue"),
    "quit": ("", "end the program"),
}


def bots_in(places: Sequence[Path]) -> dict[Path, Path]:
    """The bots directly below these folders, each with its file that is as new as the bot is."""
    return {path.parent: path for place in places for path in place.glob("*/champion") if is_bot(path.parent)}


class Partner:
    """A bot's versions, or the agent of this name; to be used with `with`. Raises UserError when there is none."""

    def __init__(self, name: str, options: ChatOptions):
        self.name, self._open = name, ExitStack()
        adjust, trust_remote_code = partial(_adjust, options), options.trust_remote_code
        self.bot = Bot(name) if is_bot(Path(name).expanduser()) else None
        if self.bot is None:
            folder = hub.model_folder(agent_folder(name, options.trust_config), "--agent", trust_remote_code)
            agent = load_agent(
                folder, options.tokenizer, options.device, trust_remote_code, adjust, options.trust_config
            )
            self.answering = Answering(agent, seed=options.seed or 0)
        elif options.tokenizer or trust_remote_code:
            raise UserError(
                "--agent: a bot has its own tokenizer and runs no code; leave --tokenizer and --trust_remote_code out"
            )
        elif options.system_prompt is not None:
            raise UserError(
                "--system_prompt: a bot's answers are rated behind its own system prompt, and learn from the ratings; set it "
                "when you make the bot: rlhf-dialog feedback init --system_prompt TEXT"
            )
        else:
            self.answering = Answering(self.bot, device=options.device, seed=options.seed, adjust=adjust)

    def __enter__(self) -> "Partner":
        self._open.enter_context(self.answering)
        self.store = None if self.bot is None else self._open.enter_context(closing(self.bot.store()))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def introduction(self) -> list[str]:
        """Who answers, what the agent says of itself, and what becomes of what is said."""
        version, said = self.answering.introduction()
        introduction = [] if said is None else [said]
        if self.bot is None:
            return [f"Agent: {self.name}", *introduction]
        stored = f"What you say and how you rate it is stored in {self.bot.store_path} to train this bot; /forget me removes it."
        return [f"Agent: {self.name}, version {version}", *introduction, stored]

    @cached_property
    def person(self) -> str:
        """Who uses this terminal; nobody where nothing is stored."""
        return "" if self.store is None else terminal_person()

    def begin(self) -> ChatSession:
        return ChatSession(self.store, self.answering, self.person, "terminal")


def _adjust(options: ChatOptions, agent: ChatAgent) -> None:
    agent.sampling = at_temperature(options.temperature, agent.sampling)
    agent.set_precision(options)
    if options.system_prompt is not None:
        agent.set_system_prompt(options.system_prompt)


def run_word(talk: ChatSession, line: str, screen: Screen) -> None:
    """Do what `/word arguments` asks for. A mistake, or feedback that could not be stored, is shown."""
    word, arguments = split_command(line)
    if word not in WORDS or word in ("reset", "quit"):
        advice = nearest(f"/{word}", [f"/{one}" for one in WORDS])
        screen.note(f"there is no word /{word}{advice or ';'} /help lists them, and // begins a message with a slash")
        return
    try:
        _act(talk, word, arguments, screen)
    except UserError as error:
        screen.note(error)


def _act(talk: ChatSession, word: str, rest: str, screen: Screen) -> None:
    match word:
        case "good":
            talk.thumb(True, rest)
            screen.note("stored: you like this answer")
        case "bad":
            talk.thumb(False, rest)
            screen.note("stored: you do not like this answer; /edit TEXT shows a better one")
        case "score":
            value = _number(rest, "/score takes a number from 1 to 5, for example /score 4")
            talk.score(value)
            screen.note(f"stored: {value} of 5")
        case "edit":
            if not rest:
                raise UserError("/edit takes the text that the answer should be")
            talk.edit(rest)
            screen.note("stored: the dialogue goes on with your answer")
        case "again":
            number = len(talk.alternatives()) + 1
            show_answer(talk, talk.again(), screen, f"> Agent, answer {number}: ")
            if talk.store is not None:
                screen.note(f"/choose 1 to /choose {number} says which answer is the best")
        case "choose":
            number = _number(rest, "/choose takes the number of an answer, for example /choose 2")
            talk.choose(number)
            screen.note(f"stored: the dialogue goes on with answer {number}")
        case "why":
            screen.note(talk.why())
        case "forget":
            if rest.lower().split() != ["me", "yes"]:
                raise UserError(
                    "/forget me removes all your dialogues and ratings, and cannot be undone; /forget me yes does it"
                )
            rows = talk.forget()
            screen.note(f"removed: {rows} rows, which is all that was stored of you; a new dialogue begins")
            screen.forget()
        case "help":
            lines = [f"  {f'/{name} {arguments}':<16}{meaning}" for name, (arguments, meaning) in WORDS.items()]
            screen.write("\n".join(lines))


def _number(text: str, advice: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(advice)
    return int(text)
