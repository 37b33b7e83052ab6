"""How far a bot is from its first lesson, for `status`, `learn` and the page."""

from rlhf_dialog.feedback.store.examples import heldout_set, read_examples
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import HELDOUT, Store


def needed_ratings(settings: BotSettings) -> int:
    """About how many ratings, one a dialogue, give `min_heldout` held-out ones."""
    return settings.min_heldout * HELDOUT


def describe_progress(num_ratings: int, num_heldout: int, settings: BotSettings) -> str:
    """`12 of about 150 ratings: ...`, for a bot that has too few held-out ones to learn from."""
    return (
        f"{num_ratings} of about {needed_ratings(settings)} ratings: one dialogue of {HELDOUT} is held out, and learning begins "
        f"with {settings.min_heldout} held-out ratings (min_heldout; {num_heldout} now)"
    )


def short_count(store: Store, settings: BotSettings) -> str:
    """`12 of about 150 ratings before it can learn`; empty when there are enough.

    Raises UserError when the store cannot be read.
    """
    if store.last_event() >= 10 * needed_ratings(settings):  # so many need not be read
        return ""
    examples = read_examples(store)
    if len(heldout_set(examples, settings)) >= settings.min_heldout:
        return ""
    return f"{len(examples)} of about {needed_ratings(settings)} ratings before it can learn"
