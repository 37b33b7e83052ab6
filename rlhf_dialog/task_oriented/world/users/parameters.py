"""How simulated users behave: for each decision a probability, or the range from which each dialogue draws one."""

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.domain import check_known

Range = tuple[float, float]
PATIENCE = (4, 6)  # turns in which the system repeats itself, at most; drawn for each dialogue
KINDS = ("friendly", "unfriendly", "fixed")
DECISIONS: dict[str, tuple[Range, Range, float]] = {  # of each kind of user
    "combines_informs": ((0.2, 0.7), (0.0, 0.4), 0.6),
    "adds_to_affirmation": ((0.2, 0.7), (0.0, 0.4), 1.0),
    "greets": ((0.3, 0.7), (0.1, 0.4), 0.5),
    "relaxes_constraint": ((0.5, 0.8), (0.2, 0.5), 0.667),
    "says_what_changed": ((0.4, 0.6), (0.2, 0.4), 0.5),
    # where nothing fits and nothing can be relaxed: goodbye, or the same again
    "gives_up": ((0.2, 0.5), (0.2, 0.5), 0.333),
    "goes_on_with_agenda": ((0.4, 0.6), (0.4, 0.6), 0.5),
    "names_venue": ((0.01, 0.2), (0.01, 0.2), 0.05),
    "dontcare_without_slot": ((0.7, 0.9), (0.7, 0.9), 0.8),
    "confirms_instead": ((0.01, 0.2), (0.01, 0.2), 0.05),
    "affirms_with_agenda": ((0.01, 0.2), (0.01, 0.2), 0.05),
    "overrules_correction": ((0.01, 0.2), (0.01, 0.2), 0.1),
    "confirms_at_random": ((0.01, 0.3), (0.01, 0.3), 0.1),
    "wants_alternative": ((0.01, 0.3), (0.01, 0.3), 0.143),
    "changes_mind": ((0.01, 0.3), (0.01, 0.3), 0.143),
    "repeats_constraint": ((0.1, 0.4), (0.1, 0.4), 0.2),
    "leaves_open": ((0.1, 0.4), (0.1, 0.4), 0.2),
    "corrects_by_negating": ((0.3, 0.5), (0.3, 0.5), 0.45),
    "corrects_by_denying": ((0.3, 0.5), (0.3, 0.5), 0.4),
    "thanks": ((0.01, 0.2), (0.01, 0.2), 0.1),
    "acknowledges": ((0.01, 0.2), (0.01, 0.2), 0.1),
    "requests_one_more": ((0.2, 0.4), (0.2, 0.4), 0.333),
    "declines_more": ((0.8, 0.9), (0.8, 0.9), 0.7),
    "affirms_more": ((0.2, 0.3), (0.2, 0.3), 0.25),
}


def read_ranges(parameters: "str | dict[str, float | Range]") -> dict[str, Range]:
    """`friendly`, `unfriendly`, `fixed`, or changes to `friendly`: a number or a range (low, high) for a decision.

    Raises UserError for an unknown name, and for something else than probabilities.
    """
    kind, changes = (parameters, {}) if isinstance(parameters, str) else ("friendly", parameters)
    check_known("user", kind, KINDS)
    ranges = {name: _as_range(of_kinds[KINDS.index(kind)]) for name, of_kinds in DECISIONS.items()}
    for name, value in changes.items():
        check_known("user parameter", name, ranges)
        low, high = ranges[name] = _as_range(value)
        if not 0 <= low <= high <= 1:
            raise UserError(f"user parameter '{name}' is {value}; give a probability, or a range of them [low, high]")
    return ranges


def _as_range(value: float | Range) -> Range:
    low, high = value if isinstance(value, tuple | list) else (value, value)
    return low, high
