from __future__ import annotations

import pytest

from tests.attacks.log_z import ATTACKS
from tests.attacks.tally import require_none_wrong


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_wrong(name: str) -> None:
    require_none_wrong(ATTACKS[name], rounds=2)
