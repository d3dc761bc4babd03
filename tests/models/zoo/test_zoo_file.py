"""Zoo files of users that say something else than they seem to."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitattack.core.errors import UsageError
from vitattack.models.zoo.catalogue import read_zoo_file

WHOLE = """schema: 1
models:
  - id: mine
    summary: a test
    arch: small:tiny_vit_32
    num_classes: 10
    input: 32
    dataset: cifar10
    weights: {from: ["https://example.org/w.pth?sig=TOPSECRET"], sha256: null}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema: 1", "schema: true", "it needs 'schema: 1'"),
        ("schema: 1", "schema: 1.0", "it needs 'schema: 1'"),
        ("num_classes: 10", "num_classes: 012", "line 6: '012' is 10 in YAML 1.1: write 12"),
        ("input: 32", "input: 1:30", "line 7: '1:30' is 90 in YAML 1.1"),
        ("input: 32", "input: 224\n    input: 32", "line 8: the key 'input' stands twice"),
        ("sha256: null", "sha256: [", "line 9: "),
        ("?sig=TOPSECRET", "?sig=TOPSECRET\x07", "special characters are not allowed"),
    ],
)
def test_a_number_or_key_that_is_not_what_it_seems(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(WHOLE)
    assert set(read_zoo_file(path)) == {"mine"}
    path.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read_zoo_file(path)
    assert said in str(caught.value), caught.value
    assert "TOPSECRET" not in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("families", "own", "said"),
    [
        ("1", "family: f", "unknown family 'f'"),
        ("{1: {}}", "family: f", "unknown family 'f': known: 1"),
        ("{f: {}}", "family: [f]", "unknown family"),
        ("{f: 1}", "family: f", "the family 'f' must be keys and values"),
        ("{f: {protocols: 3}}", "family: f", "protocols must map names to keys and values"),
        ("{f: {protocols: {clean: null}}}", "family: f", "protocols must map names to keys and values"),
        ("{f: {protocols: null}}", "family: f\n    reported: {clean: 1}", "unknown protocol 'clean'"),
    ],
)
def test_families_that_are_none_are_refused(families: str, own: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(WHOLE.replace("models:", f"families: {families}\nmodels:") + f"    {own}\n")
    with pytest.raises(UsageError) as caught:
        read_zoo_file(path)
    assert said in str(caught.value), caught.value
