"""The text of a data file: UTF-8, as a whole or line by line."""

import codecs

from rlhf_dialog.errors import UserError


def decode(data: bytes, where: str) -> str:
    """UTF-8 text without its byte order mark. Raises UserError with line and column of the first byte that is not."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        byte = f"byte 0x{data[error.start]:02x} at column {column}"
        raise UserError(f"{where}, line {line}: {byte} is not UTF-8; save the file as UTF-8") from None


def text_lines(data: bytes, where: str) -> list[str]:
    """The lines, stripped. Raises UserError when there are none or one is blank."""
    lines = decode(data, where).split("\n")
    if not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{where}: the file is empty; it needs one dialogue per line")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UserError(f"{where}, line {number}: the line is blank; every line must hold one dialogue, remove it")
    return [line.strip() for line in lines]
