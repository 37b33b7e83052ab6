"""The page of a bot: which requests pass, the talk, and who answers in it.

One thread generates for all who wait, each with random numbers of their own. A dialogue keeps the version that it began with.
An answer is shown before it is stored, and feedback is confirmed after. A page sends the state that it shows, so that two tabs
never put two messages at one place.
"""
