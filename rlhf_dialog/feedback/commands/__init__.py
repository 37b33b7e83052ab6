"""The commands of a bot; `rlhf-dialog` and `chat` find them through `wings.py`."""
