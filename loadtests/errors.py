"""What a user of the bench can mend."""


class BenchError(Exception):
    """Shown as one line; exit code 2."""
