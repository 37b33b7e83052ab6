"""What people say of the answers, and what a bot learns from it: store, versions, formats, learning, gate, page.

- **The store is append-only** (`store`, `schema`): one SQLite file. Triggers refuse every UPDATE, and every DELETE but
  that of `forget`. Feedback that comes late or changes is a new row, and the newest counts, so that what a night has
  read can be read again. Feedback is acknowledged after it is on disk (WAL with synchronous=FULL).
- **A fifth of the dialogues is held out at birth**, by a hash of the dialogue's random id: no later event moves one.
- **Of a person only a salted hash of a random id is stored.** `forget` removes the rows, and the bytes too
  (secure_delete, VACUUM, an emptied WAL); versions trained on them are marked, with all that were trained from those.
- **A bot is a folder** (`bot`): versions that are written whole, and the pointer `champion`, replaced by one rename.
  The pointer is the truth; lineage.json says how it came to be, and is read in its light after a kill.
- **What was imported is never on-policy** (`imports`): it has no token ids and no log-probabilities.
- **One thread generates** (`answering`): requests that wait are one batch, and each draws its own random numbers from a
  seed that is stored with the answer, so that who else is in the batch changes no reply.
- **A dialogue keeps its version** (`served`): the champion is read when a dialogue begins. A version leaves the memory when
  no dialogue holds it; when the champion does not load, the last good version answers.
- **An answer is shown before it is stored** (`talk`), and feedback is confirmed after. A store that is locked or full costs
  nobody the answer: the turns wait in memory, and are stored with the next ones.
- **A night is a function of its snapshot** (`night`): the last event, the champion's state, the settings. So a night that was
  killed goes on to the same bits, and the same feedback is not learned from twice: the lineage keeps the fingerprint of each.
- **The reference is the first version for ever**, in the losses, the guards and the gate: a drift of a little a night cannot
  hide in a comparison with yesterday. Its log-probabilities are computed once and kept (`reference.json`).
- **An event is consumed by the nights of a champion's line.** A refused candidate consumes nothing, and after a rollback the
  events of the versions that were left are new again. What was left out (above the cap, say) counts as seen.
- **The losses are written here and compared with TRL's in a test** (`losses`): its trainers would bring checkpoints of their own,
  which are pickles, and importing them takes longer than a small bot's night.
- **Who contradicts the others is left out, of training and gate alike** (`trust`), compared with what everybody else's feedback
  predicts. The features are words and length, because these need no model and no state. The rule would rather leave nobody out:
  of camps of equal size, of small groups, and where more than a third contradict, all are used.
- **The gate adds kinds up by what they are worth** (`gate`): counted in pairs, thirty thumbs would outvote all edits and choices.
- **A person rates what they see** (`talk`): their own edit is a preference, not an answer to like. A page sends the state that it
  shows, and a Talk compares what it knows with the store, so that two tabs never put two messages at one place.
- **The page answers to its own names** (`page.request_filter`): loopback protects from other machines, not from a site whose name leads here.
"""
