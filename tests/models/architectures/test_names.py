"""Names of architectures, checked before anything is loaded."""

from __future__ import annotations

import pytest
from torch import nn

from vitattack.core.errors import UsageError
from vitattack.models.architectures.build import ARCHITECTURES
from vitattack.models.architectures.names import check_architecture


def test_a_registered_architecture_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unknown architecture 'my_mixer'"):
        check_architecture("my_mixer")
    monkeypatch.setitem(ARCHITECTURES._entries, "my_mixer", nn.Identity)
    check_architecture("my_mixer")
