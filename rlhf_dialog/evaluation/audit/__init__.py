"""A reward's holes, found before training: what it pays for replies that nobody wants, beside what it pays for true ones.

`probes`: fixed replies that policies are known to exploit, and a search over training replies and words. The search nearly always
finds something that is paid more than a true reply, so only a judge that the reward does not use can tell whether that is a hole.
`audit`: what the reward and the judges give, and what of it is a hole.
"""
