"""A person who talks with a policy and rewards it: what is asked, what is shown, and the words that begin with a slash."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlhf_dialog.errors import SignalExit

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
WORDS = {  # word: its arguments, what it does
    "reward": ("NUMBER", "reward the last answer"),
    "end": ("", "end this dialogue"),
    "quit": ("", "end the day; a dialogue that has not ended counts if you have rewarded something in it"),
    "/": ("WORDS", "begin words with a slash"),
}


@dataclass
class PersonTurn:
    """What a person says next, and what the last answer was worth to them; None: nothing was said of it.

    ends: the person ends the dialogue without further words
    """

    text: str = ""
    reward: float | None = None
    ends: bool = False


def sum_rewards(rewards: Iterable[float | None]) -> float:
    """The sum of the rewards; None counts 0."""
    return sum(reward or 0.0 for reward in rewards)


class Teacher:
    """A person who types words, and rewards what the system says.

    ask: shows a prompt and returns a line; EOFError, or a signal that ends it, is the end of the day
    show: shows a line
    rewards: the lowest and the highest reward
    each_answer: each answer is rewarded, else the whole dialogue at its end, and an answer if the person likes to

    `left`: the person has gone, and says nothing more.
    """

    def __init__(
        self,
        ask: Callable[[str], str],
        show: Callable[[str], None],
        rewards: tuple[float, float],
        each_answer: bool = False,
    ):
        self.ask, self.show, self.rewards, self.each_answer = ask, show, rewards, each_answer
        self.left = False

    def begin(self, about: str, greeting: str) -> PersonTurn:
        """Show what is to be done and the system's greeting, where there are such, and ask for the first words."""
        if about:
            self.show(about)
        if greeting:
            self.show(f"> System: {greeting}")
        self._reward: float | None = None
        return self._ask_turn(is_first=True)

    def answer(self, sentence: str, last: bool = False) -> PersonTurn:
        """Show the answer, ask for its reward where each one is rewarded, and for the next words unless it is the last one."""
        self.show(f"> System: {sentence}")
        self._reward = self._ask_reward() if self.each_answer else None
        if last or self.left:
            return PersonTurn(reward=self._reward, ends=last)
        return self._ask_turn()

    def judge(self, verdict: str) -> float | None:
        """Show the verdict, where there is one, and ask for the reward of the whole dialogue."""
        if verdict:
            self.show(f"({verdict})")
        return self._ask_reward()

    def _ask_reward(self) -> float | None:
        """Ask for a reward until it is one, or none."""
        low, high = self.rewards
        while True:
            line = self._line(f"> Reward, {low:g} to {high:g} (Enter: none): ")
            if not line:  # none, or the end of the day
                return None
            if line.startswith("/"):
                self._run_word(line, "a reward is asked for: a number, or Enter for none")
            elif (reward := self._number(line)) is not None:
                return reward

    def _ask_turn(self, is_first: bool = False) -> PersonTurn:
        """The next words to the system; words for the program are done on the way."""
        while True:
            line = self._line("> You: ")
            if line is None:
                return PersonTurn(reward=self._reward)
            word, arguments = _split_command(line)
            if word == "end" and not is_first:
                return PersonTurn(reward=self._reward, ends=True)
            if word == "reward" and not is_first:
                reward = self._number(arguments)
                self._reward = self._reward if reward is None else reward
            elif word:
                self._run_word(line, "the system has not answered yet")
            elif line:
                return PersonTurn(line.removeprefix("/"), self._reward)
            if self.left:
                return PersonTurn(reward=self._reward)

    def _run_word(self, line: str, otherwise: str) -> None:
        known = _split_command(line)[0] in WORDS
        rows = (f"  {f'/{name} {argument}':<16}{meaning}" for name, (argument, meaning) in WORDS.items())
        self.show(f"({otherwise})" if known else "\n".join(rows))

    def _number(self, text: str) -> float | None:
        low, high = self.rewards
        if NUMBER.fullmatch(text) and low <= float(text) <= high:
            return float(text)
        self.show(f"({text!r} is not a reward; give a number from {low:g} to {high:g})")
        return None

    def _line(self, prompt: str) -> str | None:
        """What was typed; None at the end of the day."""
        try:
            line = "/quit" if self.left else self.ask(prompt).strip()
        except (EOFError, KeyboardInterrupt, SignalExit):
            self.show("")
            line = "/quit"
        self.left = _split_command(line)[0] in ("quit", "exit")
        return None if self.left else line


def _split_command(line: str) -> tuple[str, str]:
    """The word of `/word arguments`, in lower case, and its arguments; two empty texts for other lines."""
    if not line.startswith("/") or line.startswith("//"):
        return "", ""
    word, arguments = [*line[1:].split(maxsplit=1), "", ""][:2]
    return word.lower() or "?", arguments
