"""An editor and a command for `more`, brought by another package."""
