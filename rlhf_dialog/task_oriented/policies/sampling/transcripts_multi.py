"""A dialogue about several domains for readers: goal, acts, what the system knew, what was paid, bookings, and the verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.world.acts import format_acts
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState


def describe_dialogue(domain: MultiDomain, names: Sequence[str], episode: Episode) -> Iterator[str]:
    """The lines of a whole dialogue of `MultiActLevel`; `names` are those of its actions."""
    info, state = episode.info, DialogueState(domain)
    yield f"dialogue {episode.dialogue}, goal: {_goal(info['first_goal'])}"
    if info["goal"] != info["first_goal"]:
        yield f"  at the end, goal: {_goal(info['goal'])}"
    yield f"  user    {format_acts(info['user_acts'][0])}"
    state.update([], info["user_acts"][0])
    for action, reward, system, user in zip(
        episode.actions, episode.rewards, info["system_acts"], info["user_acts"][1:], strict=True
    ):
        yield f"  state   {_describe_state(state)}"
        yield f"  system  {format_acts(system)}   [{names[action]}]"
        yield f"  user    {format_acts(user)}   [reward {reward:+g}]"
        state.update(system, user)
    for booking in info["bookings"]:
        slots = ", ".join(f"{slot}={value}" for slot, value in {**booking["made"], **booking["slots"]}.items())
        yield f"  booked  {booking['domain']} {booking['reference']}: {slots}"
    how = "the user said goodbye" if episode.terminated else "the turn limit"
    shown = {**info["inform"], "book rate": info["book_rate"]}
    measures = ", ".join(f"{name} {value:.2f}" for name, value in shown.items() if value is not None)
    verdict = "success" if episode.success else "failure"
    yield f"  {verdict} after {len(episode)} turns ({how}); reward {episode.total_reward:g}; {measures}"


def _goal(goal: dict[str, dict[str, Any]]) -> str:
    return "; ".join(f"{name} ({_wish(wish)})" for name, wish in goal.items())


def _wish(wish: dict[str, Any]) -> str:
    parts = []
    for key, value in wish.items():
        said = ", ".join(value) if key == "requests" else ", ".join(f"{slot}={v}" for slot, v in value.items())
        parts.append(f"{key.replace('_', ' ')}: {said}")
    return "; ".join(parts)


def _describe_state(state: DialogueState) -> str:
    """For each domain of which the user spoke: what it wants, how many entities fit, what is open, and what is booked."""
    parts = []
    for name, domain_state in state.domains.items():
        constraints = {
            **domain_state.constraints,
            **{f"book {slot}": value for slot, value in domain_state.booking.items()},
        }
        fit = f"; {len(domain_state.matches)} fit" if domain_state.is_ready and domain_state.service.entities else ""
        asked = f"; asked: {', '.join(domain_state.asked)}" if domain_state.asked else ""
        booked = "; booked" if domain_state.is_booked else ""
        parts.append(
            f"{name} ({', '.join(f'{s}={v}' for s, v in constraints.items()) or 'anything'}{fit}{asked}{booked})"
        )
    return " ".join(parts) or "-"
