"""How the threads of torch's libgomp wait for work. libgomp reads the environment only once, when torch loads it."""

import logging
import os
import sys
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SPINS = "2000"  # turns of a waiting thread's loop before it sleeps; 300,000 by default, 0 with OMP_WAIT_POLICY=PASSIVE


def spin_briefly() -> None:
    """Set GOMP_SPINCOUNT for this process and its children, unless torch is imported already or the user has set a variable.

    Linux only. A thread that spins longer than the gaps between parallel loops keeps its core from other programs.
    """
    if sys.platform == "linux" and "torch" not in sys.modules and not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = SPINS


@cache
def warn_when_too_late() -> None:
    """Warn, once per process, when libgomp was loaded with its long default, and say what to do about it."""
    if sys.platform != "linux" or any(name in os.environ for name in VARIABLES):
        return
    if "libgomp" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"):
        logger.warning(
            "torch was imported before rlhf_dialog, so its idle threads spin for a long time, which is slow on a busy machine: "
            "import rlhf_dialog first, or export GOMP_SPINCOUNT=%s",
            SPINS,
        )
