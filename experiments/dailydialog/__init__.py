"""DailyDialog from its path to a table of results, in stages that a killed command goes on with: `make dailydialog`.

What it measures and how: docs/EVALUATION.md. A few hours on two cores; the results: experiments/results/dailydialog.md.

- **`command`** checks, then asks `stages` for each stage in turn; `record` decides whether it is done, and `jobs` runs what it
  consists of, each in a process of its own.
- **`calls` is the one place that knows how other commands are called**; `sizes` what short and full runs change in the YAMLs.
- **`rows`, `draws` and `dpo` are programs of their own**, which `jobs` starts as it starts the commands.
- **`pretrained` is the same task on a pretrained chat model**, with stages of its own on the same machinery.
- **Nothing is read of the test split before `chosen.json`** says which configuration and which validation table it followed.
"""
