"""Text in: dialogues, prompts, formats, the Hub."""
