"""Is it better: replies, measures, intervals, reports, plots.

- **A metric is sums over prompts and a function of these sums** (`intervals.Statistic`). Means, BLEU, macro-F1 and
  perplexity are therefore resampled in one way, with the same dialogues drawn for both systems of a difference.
- **Dialogues are resampled, not prompts**: the prompts of one dialogue are alike. The seed of the training is not
  resampled, and every table says "of this one run". Few units have Student's t (`intervals`).
- **A difference is taken on the prompts for which both systems have a number**; `left_out` counts the others.
"""
