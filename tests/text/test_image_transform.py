"""Texts of transforms that are refused."""

from __future__ import annotations

import pytest

from vitattack.core.errors import UsageError
from vitattack.text.image_transform import parse_transform


@pytest.mark.parametrize(
    "text", ["crop0", "crop8193", "resize0x4", "crop00000000199999", "bicubic000000001000000crop1"]
)
def test_sizes_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="leaves no usable image"):
        parse_transform(text)
