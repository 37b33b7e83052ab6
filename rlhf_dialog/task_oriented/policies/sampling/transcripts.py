"""A dialogue at act level for readers: the goal, what was said, what was believed, what was paid, and the verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_dialog.task_oriented.domains import DONTCARE, AnyDomain, MultiDomain
from rlhf_dialog.task_oriented.policies.base import Episode, Features
from rlhf_dialog.task_oriented.policies.sampling.transcripts_multi import describe_dialogue
from rlhf_dialog.task_oriented.world.acts import format_acts
from rlhf_dialog.task_oriented.world.observations import Layout

SHOWN_ABOVE = 0.05


def beliefs(layout: Layout, observation: Features) -> str:
    """The values of each constraint slot with their probabilities, best first, as far as they are above 0.05."""
    parts = []
    for slot, place in layout.slots.items():
        names = (*layout.domain.constraints[slot], DONTCARE)
        scores = observation[place].tolist()[: len(names)]
        ranked = sorted(zip(names, scores, strict=True), key=lambda pair: -pair[1])
        text = " ".join(f"{name} {score:.2f}" for name, score in ranked if score > SHOWN_ABOVE)
        parts.append(f"{slot}: {text or '-'}")
    return "; ".join(parts)


def transcript(domain: AnyDomain, names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of `ActLevel` or `MultiActLevel`; `names` are those of its actions."""
    if isinstance(domain, MultiDomain):
        return "\n".join(describe_dialogue(domain, names, episode))
    return "\n".join(_lines(Layout(domain), names, episode))


def plain_transcript(names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of any environment: its actions, and what each was worth."""
    turns = zip(episode.actions, episode.rewards, strict=True)
    lines = [
        f"  {number:3}  {names[action]}   [reward {reward:+g}]" for number, (action, reward) in enumerate(turns, 1)
    ]
    how = "the environment ended it" if episode.terminated else "the environment cut it off"
    verdict = {None: "no word of success", True: "success"}.get(episode.success, "no success")
    end = f"  {verdict} after {len(episode)} turns ({how}); reward {episode.total_reward:g}"
    return "\n".join([f"dialogue {episode.dialogue}", *lines, end])


def answer_test_transcript(names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of a `AnswerTest`: what was said, the action, and where it was wrong the right one."""
    lines = [f"dialogue {episode.dialogue}"]
    for (line, right), action in zip(episode.info["asked"], episode.actions, strict=True):
        verdict = "right" if names[action] == right else f"wrong: {right}"
        lines += [f"  user    {line}", f"  system  {names[action]}   [{verdict}]"]
    return "\n".join(
        [*lines, f"  {episode.info['right']} of {len(episode)} answers were right; reward {episode.total_reward:g}"]
    )


def _lines(layout: Layout, names: Sequence[str], episode: Episode) -> Iterator[str]:
    info = episode.info
    yield f"dialogue {episode.dialogue}, goal: {_goal(info['first_goal'])}"
    if info["goal"] != info["first_goal"]:
        yield f"  at the end, goal: {_goal(info['goal'])}"
    yield f"  user    {format_acts(info['user_acts'][0])}"
    for observation, action, reward, system, user in zip(
        episode.observations, episode.actions, episode.rewards, info["system_acts"], info["user_acts"][1:], strict=True
    ):
        yield f"  belief  {beliefs(layout, observation)}"
        yield f"  system  {format_acts(system)}   [{names[action]}]"
        yield f"  user    {format_acts(user)}   [reward {reward:+g}]"
    how = "the user said goodbye" if episode.terminated else "the turn limit"
    inform = ", ".join(f"{name} {value:.2f}" for name, value in info["inform"].items())
    verdict = "success" if episode.success else "failure"
    yield f"  {verdict} after {len(episode)} turns ({how}); reward {episode.total_reward:g}; inform: {inform}"


def _goal(goal: dict[str, Any]) -> str:
    wanted = ", ".join(f"{slot}={value}" for slot, value in goal["constraints"].items())
    refused = f"; not {', '.join(goal['other_than'])}" if goal["other_than"] else ""
    return f"{wanted}; wants to know {', '.join(goal['requests'])}{refused}"
