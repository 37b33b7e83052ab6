"""Who talks with the policy at act level, and whether a dialogue has succeeded: users, errors, tracker, words, verdict.

- **The act level is a chain of small parts** (`act_level`), as in PyDial; docs/ENVIRONMENTS.md says where it differs.
- **A dialogue is its seed, its number and the policy's actions**: user and channel have a stream each, so that a change in
  one of them does not change what the other draws.
- **The verdict reads the transcript** (`success`), not the user's memory, so that a second evaluator can check it.
"""
