"""Lists in the cells of a CSV file."""

import pytest

from rlhf_dialog.errors import UserError
from tests.parts.data_files import load

ERRORS = [
    ("a.csv", "dialog\n\"['a' 'b']\"\n", ["a.csv, line 2", "numpy", "json.dumps"]),
    ("a.csv", "dialog\n\"['a'\n 'b']\"\n", ["a.csv, line 2", "numpy"]),
    ("a.csv", 'dialog,act\n"[""a"", ""b""]",[1 2]\n', ["a.csv, line 2", "'act'", "numpy"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)
