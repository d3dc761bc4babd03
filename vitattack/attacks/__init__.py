"""Attacks: frozen values, called with a victim, images, labels and randomness. Importing this names them all."""

from vitattack.attacks import ensemble, measured, named, scaled  # noqa: F401 - they register what they define
