"""Old texts read as the new ones."""

from __future__ import annotations

import re
from typing import Any

from . import cases


def renamed(text: str) -> str:
    """A text with every old name that stands in it as a whole word replaced, the longest first."""
    for old, new in sorted(cases.RENAMED.items(), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w/.-]){re.escape(old)}(?![\w-])", lambda _, new=new: new, text)
    return text


def renamed_in(content: Any) -> Any:
    """The same for every text and key of a JSON object."""
    if isinstance(content, dict):
        return {renamed(key): renamed_in(value) for key, value in content.items()}
    if isinstance(content, list):
        return [renamed_in(value) for value in content]
    return renamed(content) if isinstance(content, str) else content
