"""The two ways a call can end badly; the command line turns them into exit codes 2 and 1."""


def first_line(error: BaseException) -> str:
    """What somebody else's error says, cut to one line; empty where it says nothing."""
    return next(iter(str(error).splitlines()), "")


class VitattackError(Exception):
    """A run failed: the message is one line that names the cause and the fix."""


class UsageError(VitattackError, ValueError):
    """What was asked for cannot be done as asked: the message is one line that names the cause and the fix."""


class WrongThreat(UsageError):
    """The attack is not defined for this kind of threat."""
