"""How dialogues of a policy are played, measured and shown; nothing here learns.

- **Chance belongs to a turn**: a policy draws from the stream of (seed, dialogue, turn), users and channel from those of (seed,
  dialogue). A dialogue is therefore the same beside others, alone, and in another process, and one that was under way when a
  run stopped is restored by making its actions again.
- **A batch is an exact number of turns.** Dialogues that are not over are cut, bootstrapped, and go on in the next one.
"""
