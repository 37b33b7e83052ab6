"""Experiments: programs that reproduce this project's tables. They are not in the wheel, and nothing in the package imports them.

They may import everything, and are called from the root of a checkout: `python -m experiments.dailydialog --help`. Each folder
says what it measures, how long it takes and where its results are; its tests are beside it (`make test-experiments`).
"""

import logging

logging.getLogger("experiments").setLevel(logging.INFO)  # shown as what the package logs
