"""Letters of a part are bound by its arrays; addresses are checked before kernels follow them."""

import numpy as np
import pytest

from logitsieve.heads._base.spec import (
    PartSpec,
    TensorSpec,
    all_different,
    check_structure,
    check_values,
    no_empty_lists,
    no_id_twice,
)

LISTS = {
    "offsets": TensorSpec("int32", ("C+1",), "offsets", "S"),
    "ids": TensorSpec("int32", ("S",), "ids", "V"),
}
CENTROIDS = {"centroids": TensorSpec("float32", ("C", "D"))}
PART = PartSpec("lists", CENTROIDS | LISTS, no_empty_lists, no_id_twice)
FACTORS = PartSpec("factors", {"factors": TensorSpec("float32", ("N",), "factors")})
BLOCKS = PartSpec("blocks", {"blocks": TensorSpec("float32", ("V/16", 16))})


def arrays() -> dict[str, np.ndarray]:
    return {
        "centroids": np.zeros((2, 3), np.float32),
        "offsets": np.array([0, 2, 5], np.int32),
        "ids": np.array([1, 0, 3, 2, 1], np.int32),
    }


def test_letters_take_the_sizes_of_the_arrays() -> None:
    check_structure(PART, arrays(), 4, 3)
    check_structure(PartSpec("alone", LISTS, no_empty_lists, no_id_twice), arrays(), 4, 3)
    check_structure(FACTORS, {"factors": np.full(2, 0.5, np.float32)}, 4, 3)
    check_structure(BLOCKS, {"blocks": np.zeros((2, 16), np.float32)}, 17, 1)


@pytest.mark.parametrize("factor", [0, -1, np.inf, np.nan])
def test_factors_are_finite_and_positive(factor: float) -> None:
    with pytest.raises(ValueError, match="factors are not all finite and above 0"):
        check_structure(FACTORS, {"factors": np.array([1, factor], np.float32)}, 4, 3)


def test_values_are_finite_and_ids_occur_once() -> None:
    seen: list[int] = []
    check_values(PART, arrays(), seen.append)
    assert sum(seen) == sum(array.nbytes for array in arrays().values())
    with pytest.raises(ValueError, match="1"):
        all_different(arrays())
    all_different({"ids": np.array([2, 0, 1], np.int32)})
