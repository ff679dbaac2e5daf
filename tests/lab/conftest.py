"""What these tests spare."""

from support.sparing import loaded_once  # noqa: F401 (pytest finds it here)
