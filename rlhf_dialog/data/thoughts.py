"""Thoughts of an assistant: where a chat template opens one, and what a reply is that continues such a prompt."""

import re
from dataclasses import dataclass

_BEGINS = re.compile(
    r"(?P<begin>(?P<left>[<\[])(?P<name>[\w:]*(?:think|thought|reason)\w*)(?P<right>[>\]]))\s*"
    r"(?P<closed>(?P=left)/(?P=name)(?P=right)\s*)?\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Opening:
    """The text of a generation prompt: its `stem`, then the beginning of a thought, which may be closed again, or nothing.

    >>> opening_of("<|im_start|>assistant\\n<think>\\n")
    Opening(stem='<|im_start|>assistant\\n', thought='<think>\\n', begin='<think>', end='</think>', is_open=True)
    """

    stem: str
    thought: str = ""
    begin: str = ""
    end: str = ""
    is_open: bool = False

    @property
    def text(self) -> str:
        return self.stem + self.thought

    def continued(self, written: str, reply: str) -> str:
        """What follows the prompt: the `reply` that a template has `written` behind the stem, with its thought or without.

        An open thought is continued with that of the reply, which a template may have left out, and closed, even if it is empty.
        A closed one is followed by the rest of the reply alone.
        """
        if written.startswith(self.thought):
            return written[len(self.thought) :]
        before, closed, answer = written.rpartition(self.end)
        if not self.is_open:
            return answer.lstrip() if closed else written
        thought = (before if closed else reply.rpartition(self.end)[0]).split(self.begin)[-1].strip()
        line = "\n" if "\n" in self.thought else ""
        return f"{thought}{line}{self.end}{line * 2}{answer.lstrip()}"


def opening_of(prompt: str) -> Opening:
    """The parts of a generation prompt."""
    found = _BEGINS.search(prompt)
    if found is None:
        return Opening(prompt)
    end = f"{found['left']}/{found['name']}{found['right']}"
    return Opening(prompt[: found.start()], found[0], found["begin"], end, found["closed"] is None)
