"""Is a policy better: rows of the table, curves, and how faithful simulated users are.

- **In the table of policies the seed counts too** (`evaluation.intervals`), because each row has several trainings on the same
  test dialogues.
"""
