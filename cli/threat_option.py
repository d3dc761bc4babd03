"""The option --threat, whose help lists the threats that are registered."""

from __future__ import annotations

import click


class ThreatOption(click.Option):
    """An option that takes threats; plug-ins are looked up only when its help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from vitattack.threats.base import THREATS, examples

        budgets = next(
            (each for kind in THREATS.in_order if (each := THREATS[kind].example) and THREATS[kind].listed), ""
        )
        several = f"; several: {budgets},4/255; a union: linf:8/255+l2:0.5" if budgets else ""
        self.help = f"{', '.join(examples())}{several}."
        return super().get_help_record(ctx)
