"""Facts about a checkpoint file that the file itself does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class FileOptions:
    """Architecture, layout and normalisation of a checkpoint file, as the user states them."""

    arch: str | None = None
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    num_classes: int | None = None
    normalize: str | None = None
    weights_key: str | None = None
    strip_prefix: str | None = None
    adapter: str | None = None
    like: str | None = None  # a zoo entry that states all of the above
    unsafe_pickle: bool = False  # the only option that zoo entries take, too

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that differ from their defaults."""
        default = FileOptions()
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(default, f.name))

    def architecture_arguments(self) -> dict[str, Any]:
        """Return the arguments of the architecture, `num_classes` among them if it is given."""
        if self.num_classes is None:
            return self.arch_kwargs
        stated = self.arch_kwargs.get("num_classes", self.num_classes)
        if stated != self.num_classes:
            raise UsageError(f"--num-classes says {self.num_classes}, --arch-kwargs {stated}: give one of them")
        return {**self.arch_kwargs, "num_classes": self.num_classes}
