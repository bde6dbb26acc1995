"""The card of a classifier, for tests."""

from dataclasses import replace
from typing import Any

from gpaco.models.networks import Network
from gpaco.tasks.classification.card import Card


def made_card(classes: tuple[str, ...] = ("a", "b", "c"), **changes: Any) -> Card:
    known = Card(
        gpaco="0",
        classes=classes,
        counts=(1,) * len(classes),
        shown=None,
        images={},
        model="resnet8",
        weights="none",
        backbone=None,
        drop_path=0.0,
        pool="",
        dim=8,
        projector="none",
        hidden=8,
        ghost_batch=0,
        size=8,
        whole=True,
        resize=9,
        interpolation="bilinear",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        classifies=True,
        assumes="uniform",
        prior="none",
        label_smoothing=0.0,
        many=100,
        few=20,
        network=Network(),
    )
    return replace(known, **changes)
