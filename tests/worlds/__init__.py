"""Drawn worlds, the small models that are trained on them, and the suites of what these models get wrong."""
