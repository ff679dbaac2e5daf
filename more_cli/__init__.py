"""Correct vision-language models from a stream of fixes."""

__version__ = "0.1.0"
