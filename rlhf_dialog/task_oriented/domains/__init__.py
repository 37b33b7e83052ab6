"""Domains are data: an ontology and entities. Everything that depends on a domain is derived from it.

- **One class for every source** (`domain.Domain`); a reader turns a file into it (`pydial`, `camrest`, our own JSON).
- **A domain is checked when it is loaded**, so that no dialogue fails on it later: slots that the ontology lacks, and a
  constraint slot without a single entity, end with a message. Values without entities are normal in real data bases; they
  are one line of the log.
- **Goals are enumerated, not drawn and rejected** (`Domain.goals`): the distribution is the one of drawing values until
  two or three entities fit, but a draw costs nothing, also in domains where such goals are rare.
"""

from rlhf_dialog.task_oriented.domains.domain import DONTCARE, NAME, TYPE, UNKNOWN, Domain
from rlhf_dialog.task_oriented.domains.loading import AnyDomain, load_domain, open_domain
from rlhf_dialog.task_oriented.domains.services import MultiDomain

__all__ = ["DONTCARE", "NAME", "TYPE", "UNKNOWN", "AnyDomain", "Domain", "MultiDomain", "load_domain", "open_domain"]
