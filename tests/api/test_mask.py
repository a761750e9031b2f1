import numpy as np

from logitsieve.api.mask import bits_of, count_bits, packed, unpacked


def test_bits_come_back() -> None:
    bits = np.random.default_rng(0).random((3, 301)) < 0.3
    bits[:, [0, 31, 32, 300]] = True
    mask = packed(bits)
    assert mask.shape == (3, 10)
    assert mask.dtype == np.int32
    np.testing.assert_array_equal(unpacked(mask, 301), bits)
    np.testing.assert_array_equal(count_bits(mask), bits.sum(axis=1))
    ids = np.array([[0, 1, 31, 32, 300]], np.int32)
    np.testing.assert_array_equal(bits_of(mask, np.arange(3)[:, None], ids), bits[:, ids[0]])
