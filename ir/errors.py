"""What can go wrong, as exceptions that also are the fitting builtins."""


class RetrogradeError(Exception):
    """Stand for everything that this package raises on purpose."""


class UnsupportedError(RetrogradeError, NotImplementedError):
    """Say that a program does what is not supported, and how to do without."""
