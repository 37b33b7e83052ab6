"""Everyday two-person dialogues by a grammar, in the layout of DailyDialog's files: data of the month and of tests.

`python -m experiments.everyday_dialogues --output DIR --num_dialogues 2000`: seconds. The rules are in grammar/, of which
words.yaml explains the notation; no text of DailyDialog is used.
"""
