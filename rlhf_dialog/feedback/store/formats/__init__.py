"""Feedback in files: rows -> dialogues with judgements (`record`), and back; one file a format.

An unknown column is an error that names it, because a column that is silently dropped may be the label. --ignore leaves columns
out.
"""
