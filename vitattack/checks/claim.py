"""A claimed robust accuracy: a share of images like those checked, or a count on the same ones."""

from __future__ import annotations

import re
from typing import NamedTuple

from vitattack.checks.exact_tests import is_too_high
from vitattack.core.errors import UsageError
from vitattack.core.percent import percent
from vitattack.records.stats import Accuracy


class Claim(NamedTuple):
    """A share; of the very images that are checked if `images` says how many there are."""

    share: float
    images: int | None = None

    @classmethod
    def of(cls, said: float | str) -> Claim:
        """A share between 0 and 1, or a count such as "41/128"."""
        if isinstance(said, str):
            found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", said.strip())
            if not found or not 0 <= int(found[1]) <= int(found[2]) or not int(found[2]):
                raise UsageError(f"'{said}' is no count of robust images: write it as 41/128")
            return cls(int(found[1]) / int(found[2]), int(found[2]))
        if not 0 <= said <= 1:
            raise UsageError(f"a claim of {said:g} is no share: write {said / 100:g} for {said:g} %")
        return cls(float(said))

    @property
    def robust(self) -> int | None:
        return None if self.images is None else round(self.share * self.images)

    def check_images(self, n: int) -> None:
        """Refuse a count that is of another number of images."""
        if self.images not in (None, n):
            raise UsageError(
                f"{self} is a claim about {self.images} images, and {n} are checked: give --limit {self.images}, or percent"
            )

    def is_refuted_by(self, found: Accuracy) -> bool:
        """A count by any lower one, a share if so few would be found in at most one sample of twenty."""
        if self.robust is not None:
            return found.correct < self.robust
        return is_too_high(self.share, found.correct, found.n)

    def json(self) -> str | None:
        return None if self.images is None else str(self)

    def __str__(self) -> str:
        return percent(self.share) if self.images is None else f"{self.robust}/{self.images}"
