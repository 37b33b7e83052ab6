"""What the built-in rewards need in every dialogue, and the error for a dialogue that lacks it."""

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import BaseReward

ACTS = {1: "inform", 2: "question", 3: "directive", 4: "commissive"}  # DailyDialog's numbers


def references(dialogues: list[Dialogue], reward: str) -> list[str]:
    """The reference of each dialogue. Raises UserError when one has none."""
    found = [dialogue.reference for dialogue in dialogues if dialogue.reference is not None]
    if len(found) < len(dialogues):
        raise _missing("a reference reply", [dialogue.reference is None for dialogue in dialogues], reward)
    return found


def reference_lists(dialogues: list[Dialogue], reward: str) -> list[list[str]]:
    """All references of each dialogue. Raises UserError when one has none."""
    first = references(dialogues, reward)
    return [dialogue.references or [text] for dialogue, text in zip(dialogues, first, strict=True)]


def acts(dialogues: list[Dialogue], reward: str) -> list[int]:
    """The act of each dialogue, 1 to 4. Raises UserError when one has none or another number."""
    known_acts = [dialogue.act for dialogue in dialogues if dialogue.act is not None]
    if len(known_acts) < len(dialogues):
        raise _missing("the act of the reference", [dialogue.act is None for dialogue in dialogues], reward)
    if wrong := [act for act in known_acts if act not in ACTS]:
        known = ", ".join(f"{number} {act}" for number, act in ACTS.items())
        raise UserError(f"reward '{reward}': the data has act {wrong[0]!r}; DailyDialog's acts are {known}")
    return known_acts


def check_needs(reward: BaseReward, prompts: list[Dialogue], where: str = "") -> None:
    """Raises UserError when the reward wants a reference or an act and a prompt (of `where`) has none."""
    for need in reward.needs:
        missing = sum(getattr(prompt, need) is None for prompt in prompts)
        if missing:
            raise UserError(
                f"env.args.data_path: {missing} of {len(prompts)} prompts{where} have no {need}, but the reward '{reward.name}' "
                "needs it; use data that has it, or another reward_class"
            )


def _missing(what: str, lacks: list[bool], reward: str) -> UserError:
    return UserError(
        f"reward '{reward}' needs {what} for every prompt; {sum(lacks)} of {len(lacks)} dialogues have none "
        f"(the first is number {lacks.index(True)}). Use data that has it, or another reward."
    )
