"""A reward's holes, found before training: what it pays for replies that nobody wants, beside what it pays for true ones.

- **Fixed probes** (`probes`) are the replies that policies have found in published runs and in ours: copies, constants, word
  lists, marks of a turn's end, lengths. Each is compared with the true replies, prompt by prompt.
- **A search** (`search`) looks for what no list has: the best of many training replies, then hill-climbing over words. It
  nearly always finds something that is paid more than a true reply, so only a judge that the reward does not use can say
  whether that is a hole.
- **A reply has at most `max_new_tokens` words**, since a policy could not write a longer one.
- **Defects of the reward itself** (`checks`): a score that changes with the other dialogues of its batch or when it is asked
  again, a part that does not vary, a classifier that is surer than it is right.
"""
