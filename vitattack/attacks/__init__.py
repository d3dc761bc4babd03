"""Attacks: frozen values, called with a victim, images, labels and randomness. Importing this package registers them."""

import vitattack.attacks.aas.variants
import vitattack.attacks.auto.attack
import vitattack.attacks.autoattack.autoattack
import vitattack.attacks.autoattack.reference
import vitattack.attacks.black_box.square
import vitattack.attacks.black_box.transfer
import vitattack.attacks.foreign.torchattacks
import vitattack.attacks.gradient.variants
import vitattack.attacks.minimum_norm.cw_l2
import vitattack.attacks.minimum_norm.fab
import vitattack.attacks.perceptual.attack
import vitattack.attacks.spatial.attack  # noqa: F401
