"""Single changes to the code that the tests must notice: `python -m tests.mutants`."""
