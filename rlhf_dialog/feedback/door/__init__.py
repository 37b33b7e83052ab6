"""The API of a bot: chat pages and applications with an OpenAI client talk to it, and send what people think of its answers.

A request brings the whole dialogue; what of it the bot itself said is found in the store, and only that can be rated.
"""
