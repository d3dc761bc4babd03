"""Attacks: frozen values, called with a victim, images, labels and randomness. Importing this names them all."""

from vitattack.attacks import (  # noqa: F401 - they register what they define
    auto,
    cw_l2,
    ensemble,
    fab,
    from_autoattack,
    from_torchattacks,
    measured,
    named,
    scaled,
    spatial,
    square,
    transfer,
)
