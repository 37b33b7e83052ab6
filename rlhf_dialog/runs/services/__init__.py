"""What accompanies a run beside its training: ledger, validation, guard, trackers, report, signals, and rescue after an error."""
