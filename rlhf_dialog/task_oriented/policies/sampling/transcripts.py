"""A dialogue for readers: goal, acts, what was believed or known, what was paid, bookings, and the verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_dialog.task_oriented.domains import DONTCARE, AnyDomain, MultiDomain
from rlhf_dialog.task_oriented.policies.base import Episode, Features
from rlhf_dialog.task_oriented.world.acts import format_acts
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState
from rlhf_dialog.task_oriented.world.summary import Layout

SHOWN_ABOVE = 0.05


def transcript(domain: AnyDomain, names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of `ActLevel` or `MultiActLevel`; `names` are those of its actions."""
    info = episode.info
    if isinstance(domain, MultiDomain):
        known, measured = _states(domain, info), info["inform"] | {"book rate": info["book_rate"]}
    else:
        layout, measured = Layout(domain), info["inform"]
        known = (f"belief  {describe_belief(layout, x)}" for x in episode.observations)
    lines = [f"dialogue {episode.dialogue}, goal: {_goal(info['first_goal'])}"]
    lines += [f"  at the end, goal: {_goal(info['goal'])}"] if info["goal"] != info["first_goal"] else []
    lines.append(f"  user    {format_acts(info['user_acts'][0])}")
    for line, action, reward, system, user in zip(
        known, episode.actions, episode.rewards, info["system_acts"], info["user_acts"][1:], strict=True
    ):
        lines += [f"  {line}", f"  system  {format_acts(system)}   [{names[action]}]"]
        lines.append(f"  user    {format_acts(user)}   [reward {reward:+g}]")
    for booking in info.get("bookings", ()):
        lines.append(
            f"  booked  {booking['domain']} {booking['reference']}: {_pairs(booking['made'] | booking['slots'])}"
        )
    how = "the user said goodbye" if episode.terminated else "the turn limit"
    measures = ", ".join(f"{name} {value:.2f}" for name, value in measured.items() if value is not None)
    verdict = f"{'success' if episode.success else 'failure'} after {len(episode)} turns ({how})"
    return "\n".join([*lines, f"  {verdict}; reward {episode.total_reward:g}; inform: {measures}"])


def describe_belief(layout: Layout, observation: Features) -> str:
    """The values of each constraint slot with their probabilities, best first, as far as they are above 0.05."""
    parts = []
    for slot, place in layout.slots.items():
        values = (*layout.domain.constraints[slot], DONTCARE)
        scored = sorted(zip(observation[place].tolist(), values, strict=False), key=lambda pair: -pair[0])
        shown = (f"{value} {score:.2f}" for score, value in scored if score > SHOWN_ABOVE)
        parts.append(f"{slot}: {' '.join(shown) or '-'}")
    return "; ".join(parts)


def _states(domain: MultiDomain, info: dict[str, Any]) -> Iterator[str]:
    """For each turn what the user wants of each domain, how many entities fit, what is open, and what is booked."""
    state = DialogueState(domain)
    for system_acts, user_acts in zip([[], *info["system_acts"][:-1]], info["user_acts"][:-1], strict=True):
        state.update(system_acts, user_acts)
        parts = []
        for name, x in state.domains.items():
            wanted = _pairs({**x.constraints, **{f"book {slot}": value for slot, value in x.booking.items()}})
            fit = f"; {len(x.matches)} fit" if x.is_ready and x.service.entities else ""
            asked = f"; asked: {', '.join(x.asked)}" if x.asked else ""
            parts.append(f"{name} ({wanted or 'anything'}{fit}{asked}{'; booked' if x.is_booked else ''})")
        yield f"state   {' '.join(parts) or '-'}"


def _goal(goal: dict[str, Any]) -> str:
    if "constraints" not in goal:
        return "; ".join(f"{name} ({'; '.join(_wishes(wish))})" for name, wish in goal.items())
    refused = f"; not {', '.join(goal['other_than'])}" if goal["other_than"] else ""
    return f"{_pairs(goal['constraints'])}; wants to know {', '.join(goal['requests'])}{refused}"


def _wishes(wish: dict[str, Any]) -> Iterator[str]:
    for key, value in wish.items():
        yield f"{key.replace('_', ' ')}: {_pairs(value) if isinstance(value, dict) else ', '.join(value)}"


def _pairs(pairs: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs.items())


def plain_transcript(names: Sequence[str], episode: Episode) -> str:
    """The lines of a whole dialogue of any environment: its actions, and what each was worth."""
    turns = enumerate(zip(episode.actions, episode.rewards, strict=True), 1)
    lines = [f"  {number:3}  {names[action]}   [reward {reward:+g}]" for number, (action, reward) in turns]
    how = "the environment ended it" if episode.terminated else "the environment cut it off"
    verdict = {None: "no word of success", True: "success"}.get(episode.success, "no success")
    end = f"  {verdict} after {len(episode)} turns ({how}); reward {episode.total_reward:g}"
    return "\n".join([f"dialogue {episode.dialogue}", *lines, end])
