"""Training of some parameters, with all others as they were."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitattack.core.errors import UsageError
from vitattack.models.base import Attackable
from vitattack.train.hooks.base import Hook


@dataclass
class Only(Hook):
    """Train nothing but the parameters whose name matches a regular expression, such as only('fusion').

    What is frozen has no part in the optimiser, its weight decay included, and is exported in its own precision.
    """

    names: str

    def __post_init__(self) -> None:
        try:
            self._pattern = re.compile(self.names)
        except re.error as error:
            raise UsageError(
                f"only('{self.names}') is not a regular expression ({error}): write only('head')"
            ) from error

    def wrap(self, victim: Attackable) -> Attackable:
        for name, parameter in victim.named_parameters():
            if not self._pattern.search(name):
                parameter.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in victim.parameters()):
            raise UsageError(f"only('{self.names}') leaves nothing to train: write a part of the parameters' names")
        return victim
