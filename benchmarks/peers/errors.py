"""What goes wrong with a peer, for its row in the table."""


class PeerError(Exception):
    """A peer couldn't be installed, started or measured."""
