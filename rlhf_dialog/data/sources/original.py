"""The original DailyDialog layout: one dialogue per line, __eou__ after every turn, the acts in a file beside it."""

from rlhf_dialog.data.sources.record import DialogueRecord, checked_record
from rlhf_dialog.data.sources.text import text_lines
from rlhf_dialog.data.sources.trees import Tree
from rlhf_dialog.errors import UserError


def read_original(tree: Tree, name: str) -> list[DialogueRecord]:
    """The dialogues of `name`, a dialogues_<split>.txt. Raises UserError when text and acts do not fit together."""
    where, lines = tree.place(name), _lines(tree, name)
    acts_name = "dialogues_act_".join(name.rsplit("dialogues_", 1))
    acts_where = tree.place(acts_name)
    act_lines = _lines(tree, acts_name) if acts_name in tree.names else None
    if act_lines is not None and len(act_lines) != len(lines):
        raise UserError(
            f"{acts_where}: {len(act_lines)} lines, but {where} has {len(lines)}; both need one line per dialogue "
            "(or remove the file of acts to use the data without them)"
        )
    return [
        checked_record(
            _turns(line),
            act_lines[i].split() if act_lines else None,
            f"{where}, line {i + 1}",
            f"{acts_where}, line {i + 1}",
        )
        for i, line in enumerate(lines)
    ]


def _lines(tree: Tree, name: str) -> list[str]:
    return text_lines(tree.read(name), tree.place(name))


def _turns(line: str) -> list[str]:
    turns = line.split("__eou__")
    return turns if turns[-1].strip() else turns[:-1]
