"""Messages of errors, which quote what users and files say."""

from __future__ import annotations

from vitattack.core.errors import UsageError, VitattackError


def test_a_message_is_one_printable_line_whatever_it_quotes() -> None:
    for error in (VitattackError, UsageError):
        text = str(error("data '\x1b[31mred\x00\n\u202e' is unknown: write cifar10"))
        assert text == "data ' [31mred   ' is unknown: write cifar10"


def test_a_long_message_keeps_its_beginning_and_its_fix() -> None:
    text = str(UsageError(f"eps '{'1' * 5000}' is not a number: write linf:8/255"))
    assert len(text) < 1000 and text.startswith("eps '111") and text.endswith("1' is not a number: write linf:8/255")
