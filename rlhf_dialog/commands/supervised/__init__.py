"""The commands of the supervised stages: language model, act classifier, preference model, relevance model."""
