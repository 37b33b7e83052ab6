"""What is shown in a chat, and who answers in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

AGENT = "> Agent: "
ENDS = ("quit", "exit")


class AnsweringTalk(Protocol):
    """An agent that answers in one dialogue with a person."""

    version: str  # which one answers
    problem: str | None  # why the newest answers are not kept, where they should be

    def spoken(self, text: str) -> str:
        """`text` as the agent sees it: a space replaces what would end a turn."""

    def say(self, text: str) -> Iterator[str]:
        """The growing answer to `text`: each string begins with the one before."""

    def end(self) -> None:
        """The dialogue is over. A second call changes nothing."""


@dataclass(frozen=True)
class Screen:
    """Where a chat is shown: `write` takes a whole line; `show`, where there is a terminal, parts of one."""

    write: Callable[[str], None]
    show: Callable[[str], None] | None = None
    forget: Callable[[], None] = lambda: None  # the lines that the terminal keeps

    def answer(self, pieces: Iterator[str], label: str = AGENT) -> None:
        """Show a growing answer: on a terminal as it grows, else when it is whole."""
        if self.show is None:
            *_, whole = ["", *pieces]
            self.write(label + (_indent_lines(whole) or "(an empty reply)"))
            return
        self.show(label)
        done = ""
        try:
            for text in map(_indent_lines, pieces):
                if not text.startswith(done):  # what was certain has changed after all
                    self.show(f"\n{label}")
                    done = ""
                self.show(text[len(done) :])
                done = text
        finally:
            self.show("\n" if done else "(an empty reply)\n")

    def note(self, text: object) -> None:
        """Show something that the agent did not say."""
        self.write(f"({text})")


def _indent_lines(text: str) -> str:
    """The text with further lines below the first: no line of it can pass for a prompt."""
    return text.replace("\n", "\n         ")


def show_answer(talk: AnsweringTalk, pieces: Iterator[str], screen: Screen, label: str = AGENT) -> None:
    """Show an answer, and say so when it is not on disk."""
    screen.answer(pieces, label)
    if talk.problem:
        screen.note(talk.problem)


def split_command(line: str) -> tuple[str, str]:
    """The word of `/word arguments`, in lower case, and its arguments; two empty texts for a message to the agent."""
    if not line.startswith("/") or line.startswith("//"):
        return "", ""
    word, arguments = [*line[1:].split(maxsplit=1), "", ""][:2]
    return word.lower(), arguments
