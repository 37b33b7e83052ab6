"""Every key and its errors; names -> classes.

- **The keys are OpenRL's.** Those that have no meaning here are in `synonyms.NO_EFFECT` with the reason, and the log
  names them. Data and sampling keys are at the top level; `env.args` holds only the two keys that OpenRL has there.
- **All mistakes come at once**, each with its dotted key, the value and a suggestion. docs/CONFIG.md is generated
  from the schema, and the resolved configuration is saved in the run folder.
- **NLPReward's KL arguments are moved to the top level**, since the KL belongs to the trainer.
"""
