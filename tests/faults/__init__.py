"""Faults done to a running `more`, and what became of the edits: `python -m tests.faults --help`."""
