"""Parquet files and folders of save_to_disk: damage gives one error that says where."""

import datasets
import pytest

from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import load, load_folder, parquet_bytes, rows_of


def test_a_saved_single_dataset_is_train_only(tmp_path):
    datasets.Dataset.from_list(rows_of("train")).save_to_disk(tmp_path / "one")
    assert len(load_records(str(tmp_path / "one"), "train")) == 5
    with pytest.raises(MissingSplit, match="there is no test split"):
        load_records(str(tmp_path / "one"), "test")


ERRORS = [
    ("a.parquet", b"PAR1 and no table", ["a.parquet: cannot be read as a parquet file", "damaged"]),
    ("a.parquet", b"", ["a.parquet: cannot be read as a parquet file"]),
    ("a.parquet", parquet_bytes(rows_of("train"))[:-90], ["a.parquet: cannot be read as a parquet file"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)


FOLDER_ERRORS = [
    ({"state.json": "{}"}, ["state.json: this is not the state.json of a saved data set"]),
    ({"train/state.json": '{"_data_files": []}'}, ["train/state.json: names no files"]),
    ({"state.json": '{"_data_files": [{"filename": "../a.arrow"}]}', "a.arrow": "x"}, ["a.arrow: cannot be read as"]),
    ({"state.json": '{"_data_files": [{"filename": "b.arrow"}]}'}, ["b.arrow: the file is missing"]),
]


@pytest.mark.parametrize(("files", "words"), FOLDER_ERRORS, ids=range(len(FOLDER_ERRORS)))
def test_errors_of_folders(tmp_path, files, words):
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, files)
    for word in words:
        assert word in str(caught.value)
