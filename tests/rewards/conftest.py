"""A fixture of tests/parts for rewards."""

from servers import no_proxy  # noqa: F401
