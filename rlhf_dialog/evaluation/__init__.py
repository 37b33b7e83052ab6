"""Is the agent better: replies, measures, intervals, reports, plots."""
