"""A reward's holes, found before training: what it pays for replies that nobody wants, beside what it pays for true ones.

- **Fixed probes** (`probes`): replies that policies are known to exploit, each compared with the true ones, prompt by prompt.
- **A search** (`search`): the best of many training replies, then hill-climbing over words. It nearly always finds something
  that is paid more than a true reply, so only a judge that the reward does not use can tell whether that is a hole.
- **Defects of the reward itself** (`checks`): scores that depend on the batch or the call, parts that do not vary, a
  classifier that is surer than it is right.
"""
