"""DailyDialog from its path to a table of results, in stages that a killed command goes on with: `make dailydialog`.

What it measures and how: docs/EVALUATION.md. A few hours on two cores; the results: experiments/results/dailydialog.md.

- **`command`** has the stages in their order. A stage whose result is there is not made again, and a training that was killed
  goes on from its checkpoint (`--resume auto`). To repeat one, remove its folder and those of the stages after it.
- **`calls` is the one place that knows how other commands are called**; `sizes` what short and full runs change in the YAMLs;
  `work` what all stages share.
- **`rows`, `draws`, `dpo` and `words` are programs of their own**, which `calls` starts as it starts the commands.
- **`pretrained` is the same task on a pretrained chat model**, with stages of its own.
- **Nothing is read of the test split before `chosen.json`** says which models and which validation table it followed.
"""
