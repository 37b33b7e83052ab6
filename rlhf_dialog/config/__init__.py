"""Every key and its errors; names -> classes.

- **The keys are OpenRL's.** Those that have no meaning here are in `synonyms.NO_EFFECT` with the reason, and the log
  names them. Data and sampling keys (`context_size`, `max_new_tokens`, `drop_overlap` ...) are at the top level, so
  that the scripts' flat configurations share them; `env.args` holds only the two keys that OpenRL has there.
- **All mistakes come at once**, each with its dotted key, the value and a suggestion. docs/CONFIG.md is generated
  from the schema, and the resolved configuration is saved in the run folder.
- **The keys of other libraries** (TRL, OpenRLHF, DeepSpeed-Chat) are in `synonyms`: a name that means one of ours
  gets that key, any other one a sentence that says what to do.
- **The estimators are a table** (`estimators`): what each one needs, and the function of `ppo` that computes it.
  Checks and defaults read the table; a new estimator is one function and one line.
- **NLPReward's KL arguments are moved to the top level**, since the KL belongs to the trainer.
- **Editors read the same schema** (`json_schema`): what it refuses the command refuses too. It requires no key, as the
  command line may give it, and allows every id of a class.
- **Two equal keys in a YAML are an error**; PyYAML would silently take the last one.
"""
