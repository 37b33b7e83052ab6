"""The talk of a person with a bot, whatever it comes through (terminal, page, API), and who answers in it.

One thread generates for all who wait, each with random numbers of their own. A dialogue keeps its version while that is usable.
An answer is shown before it is stored, and feedback is confirmed after.
"""
