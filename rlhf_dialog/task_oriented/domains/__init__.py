"""Domains are data, an ontology and entities, from which everything that depends on a domain is derived.

- **A domain is checked when it is loaded**, so that no dialogue fails on it later. Values without entities are normal.
- **Goals are enumerated, not drawn and rejected** (`Domain.goals`), which costs nothing where such goals are rare.
"""

from rlhf_dialog.task_oriented.domains.domain import DONTCARE, NAME, TYPE, UNKNOWN, Domain
from rlhf_dialog.task_oriented.domains.loading import AnyDomain, load_domain, open_domain
from rlhf_dialog.task_oriented.domains.services import MultiDomain

__all__ = ["DONTCARE", "NAME", "TYPE", "UNKNOWN", "AnyDomain", "Domain", "MultiDomain", "load_domain", "open_domain"]
