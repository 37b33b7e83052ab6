"""Environments of text for a trainer."""


class Letters:
    """A user with `seed % 3 + 1` turns, who pays for each reply the share of the letter e in it; the last turn is `Bye .`.

    The dialogue has succeeded when a reply had one. `words` are the user's.
    """

    def __init__(self, words="more ?"):
        self.words = words

    def reset(self, seed=None):
        self.left, self.found = seed % 3 + 1, False
        return f"{seed % 7} {self.words}", {}

    def step(self, reply):
        self.left -= 1
        self.found |= "e" in reply
        ended = self.left == 0
        paid = reply.count("e") / max(len(reply), 1)
        return "Bye ." if ended else self.words, paid, ended, False, {"success": self.found} if ended else {}
