"""The supervised stages: a policy that answers, a classifier of acts."""
