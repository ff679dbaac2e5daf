"""Faults injected into a running `more`, and checks that no edit is lost: `python -m tests.faults --help`."""
