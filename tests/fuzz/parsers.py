"""All fuzzed parsers by name."""

from __future__ import annotations

from tests.fuzz import documents, images_and_arrays, own_models, stored, texts, web, weights
from tests.fuzz.target import Target

PARSERS: dict[str, Target] = {
    target.name: target
    for room in (texts, documents, weights, own_models, images_and_arrays, web, stored)
    for target in room.TARGETS
}
