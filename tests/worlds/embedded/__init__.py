"""The embedded models, one per family, and their suites."""
