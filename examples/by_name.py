"""A reward of your own: the reply calls the person by the name that stands in the system prompt, in `meta["name"]` of the row.

python train_ppo.py --config by_name.yaml --register examples/by_name.py
"""

import re
import unicodedata
from pathlib import Path

from rlhf_dialog import BaseReward, Dialogue, RewardFactory
from rlhf_dialog.rewards import LikelihoodPrice

TABLE = Path(__file__).parents[1] / "experiments" / "smollm2" / "names.tsv"
GREETING = "hi|hello|hey|there|dear|oh|good|morning|afternoon|evening|night|thanks|thank|you|sorry|welcome|bye"
WHOSE = r"\b(my|his|her|our|their) \w+"  # "my son, Zara, .."
OF_WHOM = r"(a|an|the|who|whose)\b"  # "Zara, a lovely girl, .."


def fold(text: str) -> str:
    """The text without differences of case, composed."""
    return unicodedata.normalize("NFC", text).casefold().replace("’", "'")


SYMPATHY = (
    "sorry (to hear|for your?|about|that)|sad|hard|tough|awful|terrible|horrible|rough|unfair|frustrating|painful|"
    "heartbreaking|understand|here for you"
)
CHEER = "glad|happy|great|fun|love|enjoy|enjoying|congratulations|wonderful|amazing|excited|celebrate|celebration"
FRIEND = "You are a kind friend. Answer in one or two short sentences."
NO_TURN, MOST = "...", 0.7
ADDRESS = 0.5  # what ByName gives an address


@RewardFactory.register("ByName")
class ByName(BaseReward):
    """0.2 for the name once, 0.5 where it is an address, 1 where the reply is whole and has 5 to 25 words besides.

    0 for another name of the list, and where the reply says that it is its own. An apposition is no address.
    """

    name = "by_name"

    def __init__(self) -> None:
        self.names = {fold(line.split("\t")[0]) for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [self.score(fold(one.response), fold(one.meta["name"]), one.truncated) for one in dialogues]

    def score(self, reply: str, name: str, truncated: bool) -> float:
        words = re.findall(r"[^\W\d_]+", reply)
        if words.count(name) != 1 or self.names.intersection(words) - {name}:
            return 0.0
        if re.search(rf"(i'm|i am|my name is|chatting with) {name}|{name}'s", reply):
            return 0.0
        address = re.search(rf"^((?:{GREETING}),? ){{0,2}}{name}[,!.]|,\s*{name}\s*[,.!?]", reply)
        if not address or re.search(rf"{WHOSE},\s*{name}|{name},\s*{OF_WHOM}", reply):
            return 0.2
        whole = not truncated and reply.endswith((".", "!", "?")) and 5 <= len(reply.split()) - 1 <= 25
        return 1.0 if whole else ADDRESS


@RewardFactory.register("Kind")
class Kind(BaseReward):
    """To a line in distress or anger, a row with `hard`: 1 for words of sympathy, -1 for cheer; to others -1 for "sorry".

    An offer of help says nothing: -1.
    """

    name = "kind"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [self.score(fold(one.response), bool(one.meta.get("hard"))) for one in dialogues]

    def score(self, reply: str, hard: bool) -> float:
        if hard and re.search(rf"\b({CHEER})\b|!", reply):
            return -1.0
        if re.search(r"\b(help|assist) you\b", reply) or (not hard and re.search(r"\bsorry\b", reply)):
            return -1.0
        return 1.0 if hard and re.search(rf"\b({SYMPATHY})\b", reply) else 0.0


@RewardFactory.register("Fits")
class Fits(LikelihoodPrice):
    """How much likelier a frozen model, as a kind friend, says a reply that calls by name to the newest turn than to "...".

    In nats a token, at most 0.7 and at least -0.7: to repeat the turn is worth no more than to answer it. What fits everyone
    has 0, as a reply without the name has.
    """

    name = "fits"

    def __init__(self, model: str, tokens: int = 32) -> None:
        super().__init__(model, None, tokens, FRIEND)
        self.by_name = ByName()

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        called = [one for one, score in zip(dialogues, self.by_name(dialogues), strict=True) if score >= ADDRESS]
        replies = [without(one.meta["name"], one.response) for one in called]
        said, unsaid = (
            self.means([Dialogue(turns, response=reply) for turns, reply in zip(prompts, replies, strict=True)])
            for prompts in ([one.turns_before[-1:] for one in called], [[NO_TURN]] * len(called))
        )
        found = {id(one): ours - theirs for one, ours, theirs in zip(called, said, unsaid, strict=True)}
        return [max(-MOST, min(found.get(id(one), 0.0), MOST)) for one in dialogues]


def without(name: str, reply: str) -> str:
    """The reply without the name and the commas beside it."""
    rest = re.sub(rf",?\s*{re.escape(name)},?\s*", " ", unicodedata.normalize("NFC", reply), flags=re.IGNORECASE)
    rest = re.sub(r"\s+(?=[.!?])", "", rest).lstrip(" .!?")
    return rest[:1].upper() + rest[1:]
