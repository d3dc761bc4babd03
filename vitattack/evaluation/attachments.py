"""Attachments: what else is measured on a model once an attack has run, kept as sections of the attack's result.

Those that are known here are made in rooms above this one, which are imported only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vitattack.core.registry import Registry
from vitattack.evaluation.prepare import Prepared
from vitattack.records.report_section import Section
from vitattack.records.result import Result
from vitattack.records.stored_result import keep_sections
from vitattack.threats.base import Threat


class Occasion(NamedTuple):
    """A finished attack on a model that is still at hand."""

    prepared: Prepared
    threat: Threat
    result: Result


ATTACHMENTS: Registry[Callable[[Occasion], Section]] = Registry("attachment")
ATTACHMENTS.add("certificate", "vitattack.checks.certificate_of_run:certificate_of_run")
ATTACHMENTS.add("check", "vitattack.report.check:check_of_run")


def with_attachments(occasion: Occasion, names: Iterable[str]) -> Result:
    """The result with these attachments; those that it lacks are made, and stored beside its numbers."""
    result = occasion.result
    made = tuple(ATTACHMENTS[name](occasion) for name in names if result.section(name) is None)
    if not made:
        return result
    if result.folder is not None:
        keep_sections(result.folder, made)
    return result.with_sections(made)


def attached(result: Result) -> tuple[Section, ...]:
    """The sections of a stored result that no attack can compute anew from its records."""
    return tuple(section for section in result.sections if section.name in ATTACHMENTS)
