"""Facts about a checkpoint file that the file itself does not hold."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.words import printable

LARGEST_SIDE = 8192
ANY_SIZE = "any"  # images keep their sizes, which may differ


def parse_size(text: str) -> tuple[int, int]:
    """Parse 224 or 224x160 as height and width."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    sides = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not all(1 <= side <= LARGEST_SIDE for side in sides):
        raise UsageError(
            f"input size '{printable(text, 40)}' is not understood: write 224, or HEIGHTxWIDTH as 224x160, or any if they differ"
        )
    return sides


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
    model_from: str | None = None  # code that builds the model, in place of arch
    input_size: str | None = None  # H or HxW, where the model does not state it; any, where it takes several

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that differ from their defaults."""
        default = FileOptions()
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(default, f.name))

    @property
    def words(self) -> tuple[str, ...]:
        """The options as words of a command line."""
        said: list[str] = []
        for name in self.given:
            value = getattr(self, name)
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            said += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", text]
        return tuple(said)

    @property
    def size(self) -> tuple[int, int] | None:
        """The height and width that the user states."""
        return None if self.input_size is None or self.any_size else parse_size(str(self.input_size))

    @property
    def any_size(self) -> bool:
        """Whether the user states that the model takes images of several sizes."""
        return self.input_size == ANY_SIZE

    def architecture_arguments(self) -> dict[str, Any]:
        """Return the arguments of the architecture, `num_classes` among them if it is given."""
        if self.num_classes is None:
            return self.arch_kwargs
        stated = self.arch_kwargs.get("num_classes", self.num_classes)
        if stated != self.num_classes:
            raise UsageError(f"--num-classes says {self.num_classes}, --arch-kwargs {stated}: give one of them")
        return {**self.arch_kwargs, "num_classes": self.num_classes}
