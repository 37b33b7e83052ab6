"""A new store."""

import pytest

from rlhf_dialog.feedback.store.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store.create(tmp_path / "feedback.sqlite")
    yield store
    store.close()
