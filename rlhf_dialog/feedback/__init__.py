"""What people say of the answers, and what a bot learns from it: a product of its own beside the pipeline.

Rooms, from below: `store` (one SQLite file, its formats, the bot's folder), `learning` (nights, the gate) and `page` (the
talk in a browser) beside each other, `commands` on top. The docstring of each room says why it is as it is.
"""
