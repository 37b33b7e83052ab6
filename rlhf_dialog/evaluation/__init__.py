"""Is it better: replies, measures, intervals, reports, plots.

- **A metric is sums over prompts and a function of these sums** (`intervals.Statistic`). Means, BLEU, macro-F1 and
  perplexity are therefore resampled in one way: one matrix product for 1,000 resamples, with the same dialogues drawn
  for both systems of a difference. BLEU keeps its counts for each reply; sacrebleu does the arithmetic on the sums.
- **Dialogues are resampled, not prompts.** The prompts of one dialogue share its topic, its turns and often its acts;
  intervals that resample prompts are too narrow. A drawn dialogue brings all its prompts, so a mean is a ratio of two
  sums. The seed of the training is not resampled, and every table says "of this one run".
- **Few units have Student's t** (`intervals`): a bootstrap of three training seeds claims 95 % and covers 88 %. With 10
  units and more the bootstrap's quantiles are expanded, so that 10 dialogues too are covered as often as claimed.
- **A difference is taken on the prompts for which both systems have a number**; `left_out` counts the others.
- **`score` is what training maximises**: the reward less the truncation penalty (`rewards.scoring.Scorer`).
- **The judge** (`act_judges`, `--judge`) is an act classifier that the reward never saw. The reward's own one is what the
  policy was paid by, so it does not show whether a person would find the act.
- **distinct-n falls with the number of texts**, so it is the mean over blocks of 100 replies. With fewer than 200
  replies there is one block, and a point in place of an interval; `distinct_blocks` says how many there are.
- **Baselines need no model** (`replies.baseline_replies`): they are what a trained agent has to beat.
- **`always_inform` counts as act 1**, no matter what the classifier finds in its text: it is the accuracy of the commonest
  act. Its score is what the reward gives to the text. `reference_perplexity` of a baseline without a model is null.
- **`meteor_shuffled` and `random_reference` walk one random cycle of prompts in opposite directions.** With the same
  neighbour, a random reference would be compared with itself.
- **A configuration that was found is data** (`found_config`): docs/SECURITY.md has the rule, docs/DECISIONS.md the
  reason.
"""
