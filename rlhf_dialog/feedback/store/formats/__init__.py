"""Feedback of other programs, one file a format: rows or records -> dialogues with judgements (`record`).

- **The file says what it is** (`imports`): its columns decide, not its name.
- **An unknown column is an error that names it**, because a column that is silently dropped may be the label. --ignore
  leaves columns out.
- **What a log cannot say is left out and counted**, such as a rating without its chat. A data set that
  somebody prepared (`trl`) is refused at its first row that cannot be used.
"""
