"""How much do the tests notice? 100 changes of one line, and the test that fails for each (line_changes.json)."""
