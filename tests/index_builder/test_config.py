from dataclasses import fields
from typing import Any

import pytest

from logitsieve.index_builder.capture import CaptureConfig
from logitsieve.index_builder.config import BuildConfig
from tests.refusals import refused


def test_every_option_has_help_and_a_range() -> None:
    for field in fields(BuildConfig):
        assert field.metadata["help"].endswith(".")
        unranged = field.name in ("dtype", "fallback", "reproducible")
        assert unranged or field.metadata["low"] is not None
        assert field.kw_only


@pytest.mark.parametrize("config", [BuildConfig, CaptureConfig])
def test_a_huge_number_is_refused_by_name(config: type[BuildConfig | CaptureConfig]) -> None:
    numbers = [field for field in fields(config) if "low" in field.metadata]
    for field in numbers:
        value: Any = (10**400,) if field.name == "clusters_tried" else 10**400
        with refused(field.name):
            config(**{field.name: value})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"clusters": 0}, {"clusters": 65_536}, {"clusters": 2.5}, {"clusters": True}),
        *({"labels": 65}, {"budget": 0}, {"budget": float("nan")}, {"budget": float("inf")}),
        *({"rounds": -1}, {"learning_rate": 0}, {"waste_weight": "1"}, {"seed": None}),
        *({"threads": 0}, {"clusters_tried": ()}, {"clusters_tried": (50, 0)}),
        *({"clusters_tried": [50]}, {"dtype": ""}, {"dtype": "float64"}, {"dtype": "BF16"}),
        *({"dtype": None}, {"dtype": ["float16"]}),
    ],
)
def test_values_out_of_range(wrong: dict[str, object]) -> None:
    with refused(next(iter(wrong))):
        BuildConfig(**wrong)  # type: ignore[arg-type]
