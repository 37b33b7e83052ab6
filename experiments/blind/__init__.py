"""Blind reading: which of two systems' replies do readers prefer who do not know whose they are?

`python -m experiments.blind --replies replies.jsonl --output reading` writes a page and its key from the file of `evaluate
--replies`; a reader judges 60 pairs in about half an hour. `--key` with `--verdicts` counts. The results are in
experiments/results/dailydialog.md and experiments/results/chat_smollm2.md.
"""
