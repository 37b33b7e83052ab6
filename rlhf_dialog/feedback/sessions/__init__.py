"""The talk of a person with a bot, whatever it comes through (terminal, page, API), and who answers in it.

One thread generates for all who wait, each with random numbers of their own. A dialogue keeps the version that it began with.
An answer is shown before it is stored, and feedback is confirmed after.
"""
