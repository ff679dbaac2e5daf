"""A recipe: every number of an editing run, in one TOML file, checked before anything else is read or written."""
