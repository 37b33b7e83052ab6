"""What is kept: the store of feedback, its schema and formats, the bot's folder, its settings, and the examples in it."""
