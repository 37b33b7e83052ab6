"""How simulated users behave: for each decision a probability, or the range from which each dialogue draws one."""

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.domain import check_known

Ranges = dict[str, tuple[float, float]]
PATIENCE = (4, 6)  # turns in which the system repeats itself, at most; drawn for each dialogue

FRIENDLY: Ranges = {
    "combines_informs": (0.2, 0.7),
    "adds_to_affirmation": (0.2, 0.7),
    "greets": (0.3, 0.7),
    "relaxes_constraint": (0.5, 0.8),
    "says_what_changed": (0.4, 0.6),
    "gives_up": (0.2, 0.5),  # where nothing fits and nothing can be relaxed: goodbye, or the same again
    "goes_on_with_agenda": (0.4, 0.6),
    "names_venue": (0.01, 0.2),
    "dontcare_without_slot": (0.7, 0.9),
    "confirms_instead": (0.01, 0.2),
    "affirms_with_agenda": (0.01, 0.2),
    "overrules_correction": (0.01, 0.2),
    "confirms_at_random": (0.01, 0.3),
    "wants_alternative": (0.01, 0.3),
    "changes_mind": (0.01, 0.3),
    "repeats_constraint": (0.1, 0.4),
    "leaves_open": (0.1, 0.4),
    "corrects_by_negating": (0.3, 0.5),
    "corrects_by_denying": (0.3, 0.5),
    "thanks": (0.01, 0.2),
    "acknowledges": (0.01, 0.2),
    "requests_one_more": (0.2, 0.4),
    "declines_more": (0.8, 0.9),
    "affirms_more": (0.2, 0.3),
}
UNFRIENDLY: Ranges = FRIENDLY | {
    "combines_informs": (0.0, 0.4),
    "adds_to_affirmation": (0.0, 0.4),
    "greets": (0.1, 0.4),
    "relaxes_constraint": (0.2, 0.5),
    "says_what_changed": (0.2, 0.4),
}
FIXED: Ranges = {
    "combines_informs": (0.6, 0.6),
    "adds_to_affirmation": (1.0, 1.0),
    "greets": (0.5, 0.5),
    "relaxes_constraint": (0.667, 0.667),
    "says_what_changed": (0.5, 0.5),
    "gives_up": (0.333, 0.333),
    "goes_on_with_agenda": (0.5, 0.5),
    "names_venue": (0.05, 0.05),
    "dontcare_without_slot": (0.8, 0.8),
    "confirms_instead": (0.05, 0.05),
    "affirms_with_agenda": (0.05, 0.05),
    "overrules_correction": (0.1, 0.1),
    "confirms_at_random": (0.1, 0.1),
    "wants_alternative": (0.143, 0.143),
    "changes_mind": (0.143, 0.143),
    "repeats_constraint": (0.2, 0.2),
    "leaves_open": (0.2, 0.2),
    "corrects_by_negating": (0.45, 0.45),
    "corrects_by_denying": (0.4, 0.4),
    "thanks": (0.1, 0.1),
    "acknowledges": (0.1, 0.1),
    "requests_one_more": (0.333, 0.333),
    "declines_more": (0.7, 0.7),
    "affirms_more": (0.25, 0.25),
}
NAMED = {"friendly": FRIENDLY, "unfriendly": UNFRIENDLY, "fixed": FIXED}


def read_ranges(parameters: "str | dict[str, float | tuple[float, float]]") -> Ranges:
    """`friendly`, `unfriendly`, `fixed`, or changes to `friendly`: a number or a range (low, high) for a decision.

    Raises UserError for an unknown name, and for something else than probabilities.
    """
    if isinstance(parameters, str):
        check_known("user", parameters, NAMED)
        return NAMED[parameters]
    ranges = dict(FRIENDLY)
    for name, value in parameters.items():
        check_known("user parameter", name, ranges)
        low, high = value if isinstance(value, tuple | list) else (value, value)
        if not 0 <= low <= high <= 1:
            raise UserError(f"user parameter '{name}' is {value}; give a probability, or a range of them [low, high]")
        ranges[name] = (low, high)
    return ranges
