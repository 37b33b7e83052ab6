"""What ChatML looks like in ids of `tiny.chat_tokenizer`, by hand."""

from tests.parts.tiny import byte_tokenizer

PAD, EOS, BOS, START, END = 256, 257, 258, 259, 260


def spell(*parts: str | int) -> list[int]:
    """Ids written by hand: numbers as they are, texts byte by byte."""
    letters = byte_tokenizer(separator_token=False)
    return [i for part in parts for i in ([part] if isinstance(part, int) else letters(part)["input_ids"])]


def said(role: str, text: str) -> list[int]:
    """One whole message in ChatML."""
    return spell(START, f"{role}\n{text}", END, "\n")


OPEN = spell(START, "assistant\n")
