"""A run of a policy of acts: settings, scene, loop, checkpoint, and the table that compares policies.

- **A table of policies is its cells** (`table`): policy x error rate x seed, each a file that is written when
  its training is over, with the settings that decide its numbers. The commit is recorded, not compared: a row that is added
  later must not cost the others. Each cell is a process (`jobs`), because a policy may die, and because no cell must see
  what another one left in memory.
"""
