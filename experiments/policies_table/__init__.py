"""The table of dialogue policies: each policy, error rate and seed, measured after some numbers of training dialogues.

`python -m experiments.policies_table --policies all --errors 0 15 30 --seeds 5 --budget 90m --output table.json`: about 90
minutes on two cores for five seeds. The results: experiments/results/policies.md.

- **A table is its cells** (`table`): policy x error rate x seed, each a file that is written when its training is over, with the
  settings that decide its numbers. The commit is recorded, not compared, so that a row can be added later.
- **Each cell is a process** (`jobs`), because a policy may die, and because no cell must see what another one left in memory.
- **The seed counts in the intervals** (`rows`), because each row has several trainings on the same test dialogues.
"""
