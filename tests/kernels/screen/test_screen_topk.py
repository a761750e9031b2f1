"""The distinct ids of several clusters' lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.screen.screen_topk import ClusterLists, unite
from logitsieve.kernels.simd.pointers import pointer


@kernel("(int32[::1], int32[::1], int32[::1], boolean, int32[::1])")
def united(offsets, ids, clusters, shared, out):
    lists = ClusterLists(pointer(offsets), pointer(ids))
    return unite(lists, pointer(clusters), clusters.size, shared, pointer(out))


@given(
    lists=st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), min_size=1, max_size=6),
    data=st.data(),
)
def test_an_id_of_two_lists_is_there_once(lists: list[list[int]], data: st.DataObject) -> None:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    ids = np.array([i for each in lists for i in each], np.int32)
    chosen = data.draw(st.lists(st.sampled_from(range(len(lists))), unique=True, min_size=1))
    out = np.empty(sum(map(len, lists)), np.int32)
    clusters = np.array(chosen, np.int32)
    size = united(offsets, ids, clusters, True, out)
    assert out[:size].tolist() == sorted({i for c in chosen for i in lists[c]})
    size = united(offsets, ids, clusters, False, out)
    assert out[:size].tolist() == [i for c in chosen for i in lists[c]]
