"""The commands of dialogue policies; `rlhf-dialog` finds them through `wings.py`."""
