"""The panel: eight small models in four other worlds, and their suites."""
