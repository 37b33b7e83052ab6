"""What PPO is worth in replies to choose from, on systems for which it is known."""

import numpy as np

from experiments.dailydialog import choosing
from experiments.dailydialog.systems import System


def system(title, kl, r10):
    numbers = {"kl": np.full(4, kl), "score": np.full(4, r10 / 2), "relevance_r10": np.full(4, r10)}
    return System(title, [[{**numbers, "dialogues": np.arange(4), "about:seconds": np.asarray(1.0)}]])


ROWS = {
    one.title: one
    for one in (
        system("SFT", 0.0, 0.2),
        system("SFT, best of 2", np.log(2) - 1 / 2, 0.3),
        system("SFT, best of 4", np.log(4) - 3 / 4, 0.4),
        system("PPO, rloo", np.log(4) - 3 / 4, 0.3),
        system("PPO, rloo, best of 2", 1.0, 0.5),
        system("PPO, gae", 3.0, 0.9),
    )
}


def test_a_sentence_for_each_measure():
    worth = "the agent is worth the best of 2.0 of its start's, at the kl of the best of 4.0."
    assert [line.lower() for line in choosing.sentences(ROWS)] == [
        f"- by score {worth}",
        f"- by r@10 convolution {worth}",
    ]
