"""Is it better: replies, measures, intervals, reports, plots."""
