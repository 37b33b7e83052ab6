"""Messages with roles: which are turns, and which are refused."""

import pytest

from rlhf_dialog.errors import UserError
from tests.parts.data_files import jsonl_bytes, load


def test_system_messages_are_said_once(tmp_path, caplog):
    from rlhf_dialog.data.sources import messages

    messages._say_that_system_is_not_shown.cache_clear()
    row = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]}
    for _ in range(2):
        load(tmp_path, "a.jsonl", jsonl_bytes([row, row]))
    assert caplog.text.count("the model does not see them") == 1


ERRORS = [
    ("a.jsonl", '{"messages": [{"role": "tool", "content": "a"}]}', ["turn 1 has the role 'tool'"]),
    ("a.jsonl", '{"messages": [{"content": [{"type": "image_url"}]}]}', ["turn 1", "image_url", "'type': 'text'"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": null}]}', ["system message 1 holds null"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": "a"}]}', ["the dialogue has no turns"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)
