"""Small plain language models of drawn worlds of facts."""
