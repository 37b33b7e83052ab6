"""The night: what is learned from the examples, and the gate that decides about promotion.

- **A night is a function of its snapshot** (`night`): the last event, the champion's state, the settings. So a night that was
  killed goes on to the same bits, and the same feedback is not learned from twice: the lineage keeps the fingerprint of each.
- **The reference is the first version for ever**, in the losses, the guards and the gate: a drift of a little a night cannot
  hide in a comparison with yesterday. Its log-probabilities are computed once and kept (`reference.json`).
- **An event is consumed by the nights of a champion's line.** A refused candidate consumes nothing, and after a rollback the
  events of the versions that were left are new again. What was left out (above the cap, say) counts as seen.
- **The gate adds kinds up by what they are worth** (`gate`): counted in pairs, thirty thumbs would outvote all edits and choices.
"""
