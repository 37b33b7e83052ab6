"""The page of a bot: which requests pass, the talk, and who answers in it."""
