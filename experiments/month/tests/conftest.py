"""The fixture of a tiny month."""

from experiments.month.tests.months import month_inputs  # noqa: F401
