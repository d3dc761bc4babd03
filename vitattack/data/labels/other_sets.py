"""Class names of Caltech-101 and the corruptions of ImageNet-C and CIFAR-C."""

from __future__ import annotations

# Caltech-101 in alphabetical order of the folder names in lower case; the background is a class like the others.
_CALTECH = """
    accordion airplanes anchor ant background_google barrel bass beaver binocular bonsai brain brontosaurus buddha
    butterfly camera cannon car_side ceiling_fan cellphone chair chandelier cougar_body cougar_face crab crayfish
    crocodile crocodile_head cup dalmatian dollar_bill dolphin dragonfly electric_guitar elephant emu euphonium ewer
    faces faces_easy ferry flamingo flamingo_head garfield gerenuk gramophone grand_piano hawksbill headphone hedgehog
    helicopter ibis inline_skate joshua_tree kangaroo ketch lamp laptop leopards llama lobster lotus mandolin mayfly
    menorah metronome minaret motorbikes nautilus octopus okapi pagoda panda pigeon pizza platypus pyramid revolver
    rhino rooster saxophone schooner scissors scorpion sea_horse snoopy soccer_ball stapler starfish stegosaurus
    stop_sign strawberry sunflower tick trilobite umbrella watch water_lilly wheelchair wild_cat windsor_chair wrench
    yin_yang
"""
CALTECH101 = tuple(_CALTECH.split())

# The 15 corruptions of Hendrycks & Dietterich (2019) in their order, and the 4 extra ones.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
