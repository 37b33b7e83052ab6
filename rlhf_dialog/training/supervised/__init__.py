"""The supervised stages: fine-tuning a policy on replies, and training a classifier of dialogue acts."""
