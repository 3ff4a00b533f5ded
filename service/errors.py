"""What a user of the command line can mend: the message is the one line that they see."""


class CommandError(RuntimeError):
    """The command can't do what it was asked to; the message says why and what to do."""
