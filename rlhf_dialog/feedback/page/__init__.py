"""The page of a bot: which requests pass, and what it shows. A page sends the state that it shows, so that two tabs never put two
messages at one place.
"""
