"""How much the tests notice: changes of one line in the package, and the test that fails for each. `line_changes.json` has 100 of them."""
