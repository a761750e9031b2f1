import numpy as np
import pytest

from logitsieve.training.kernels.hadamard import padded, random_signs, structured_products


def hadamard_matrix(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize("size", [1, 3, 8, 16, 20, 32, 64, 100, 128, 512])
def test_structured_products_are_those_of_the_matrices(size: int) -> None:
    generator = np.random.default_rng(size)
    signs = random_signs(2, size, generator)
    width = padded(size)
    matrix = hadamard_matrix(width) / np.sqrt(width)
    vectors = generator.standard_normal((5, size)).astype(np.float32)
    longer = np.zeros((5, width))
    longer[:, :size] = vectors
    expected = []
    for one, two, three in signs.astype(float):
        whole = np.sqrt(width) * matrix * one @ (matrix * two) @ (matrix * three)
        expected.append(longer @ whole.T)
    products = np.empty((5, 2 * width), np.float32)
    structured_products(vectors, signs, products)
    np.testing.assert_allclose(products, np.concatenate(expected, axis=1), rtol=1e-4, atol=1e-4)
