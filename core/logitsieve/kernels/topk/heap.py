"""The running top k: a binary heap with the worst answer at the root.

An answer is better if its logit is larger, or equal with a lower id, so the order of offers does
not matter.
"""

from logitsieve.kernels.compile import inline


@inline
def better(value, row, other_value, other_row):
    return value > other_value or (value == other_value and row < other_row)


@inline
def _sink(values, rows, size, value, row):
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and better(
            values[child], rows[child], values[child + 1], rows[child + 1]
        ):
            child += 1
        if not better(value, row, values[child], rows[child]):
            break
        values[place], rows[place] = values[child], rows[child]
        place = child
    values[place], rows[place] = value, row


@inline
def offer(values, rows, size, limit, value, row):
    """Keep (value, row) if it is among the `limit` best so far; return the new size."""
    if size == limit:
        if better(value, row, values[0], rows[0]):
            _sink(values, rows, size, value, row)
        return size
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not better(values[parent], rows[parent], value, row):
            break
        values[place], rows[place] = values[parent], rows[parent]
        place = parent
    values[place], rows[place] = value, row
    return size + 1


@inline
def contains(rows, size, row):
    for i in range(size):  # noqa: SIM110  (a generator does not compile)
        if rows[i] == row:
            return True
    return False


@inline
def sort_best_first(values, rows, size):
    for last in range(size - 1, 0, -1):
        value, row = values[last], rows[last]
        values[last], rows[last] = values[0], rows[0]
        _sink(values, rows, last, value, row)
