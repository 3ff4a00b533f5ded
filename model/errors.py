"""What can go wrong with a model, as one exception whose message a user can act on."""


class ModelError(ValueError):
    """A model can't be found, read or run; the message says what, which value, and what to do."""
