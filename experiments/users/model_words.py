"""A language model's words for a user's acts: what is said is exact, how it is said is the model's."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from rlhf_dialog.task_oriented.domains import TYPE
from rlhf_dialog.task_oriented.world.acts import Act, format_acts
from rlhf_dialog.task_oriented.world.users.language_model import load_responder, write_turns
from rlhf_dialog.task_oriented.world.words import Words

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import ChatAgent

INSTRUCTION = "Write what a caller says who means these dialogue acts."
POLITE = frozenset(("hello", "thankyou", "ack", "null"))


class LMWords:
    """An `nlg` of `GoalOriented`: acts -> a sentence of the model, if it is read as these acts; else that of the templates.

    words: reads sentences, and has the templates (`words.user_words`)
    model: as for `LMUser`; sampling: too
    instruction, examples: what the model reads before the acts; an example is a turn of acts and its words. Leave both empty
        for a model that was trained on pairs of acts (`format_acts`) and words
    tries: how often the model may write before the templates do

    `num_turns` and `num_fallbacks` count turns, and those of them that the templates said.
    Raises UserError when the model cannot be loaded.
    """

    def __init__(
        self,
        words: Words,
        model: "str | ChatAgent",
        instruction: str = INSTRUCTION,
        examples: Sequence[tuple[Sequence[Act], str]] = (),
        tries: int = 3,
        device: str = "auto",
        **sampling: Any,
    ):
        self.words, self.tries = words, tries
        self.responder = (
            load_responder(model, device, tuple(sorted(sampling.items()))) if isinstance(model, str) else model
        )
        self.before = [text for acts, sentence in examples for text in (format_acts(acts), sentence)]
        self.instruction = instruction
        self.num_turns = self.num_fallbacks = 0

    def __call__(self, acts: list[Act], rng: Random) -> str:
        """One turn in words; one number is drawn from `rng`, no matter how often the model writes."""
        return self.say_all([acts], [rng])[0]

    def say_all(self, turns: Sequence[list[Act]], streams: Sequence[Random]) -> list[str]:
        """Several turns in words, which share a generation; a stream for each of them."""
        rngs = [Random(stream.getrandbits(64)) for stream in streams]
        accepted: dict[int, str] = {}
        for _ in range(self.tries):
            open_rows = [row for row in range(len(turns)) if row not in accepted]
            texts = self._generate([turns[row] for row in open_rows], [rngs[row] for row in open_rows])
            pairs = zip(open_rows, texts, strict=True)
            accepted |= {row: text for row, text in pairs if self.carries(text, turns[row])}
        self.num_turns += len(turns)
        self.num_fallbacks += len(turns) - len(accepted)
        return [
            accepted[row] if row in accepted else self.words.say(acts, rng)
            for row, (acts, rng) in enumerate(zip(turns, rngs, strict=True))
        ]

    def carries(self, text: str, acts: Sequence[Act]) -> bool:
        """Whether the text says the acts and nothing else. Greetings and thanks may be added or left out, and so may what
        the user is looking for (`type`) beside other acts."""
        return bool(text) and _meaning(self.words.read(text)) == _meaning(acts)

    def _generate(self, turns: Sequence[list[Act]], streams: Sequence[Random]) -> list[str]:
        if not turns:
            return []
        prompts = [[*self.before, format_acts(acts)] for acts in turns]
        whole = [[" ".join(filter(None, (self.instruction, first))), *later] for first, *later in prompts]
        return write_turns(self.responder, [[prompt] for prompt in whole], streams)


def _meaning(acts: Sequence[Act]) -> set[Act]:
    meant = {act for act in acts if act.intent not in POLITE}
    return {act for act in meant if act.slot != TYPE} or meant
