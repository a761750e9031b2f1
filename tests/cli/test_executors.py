from __future__ import annotations

import pytest

from logitsieve.api.errors import MissingExtra
from logitsieve.cli.executors import executor_at
from logitsieve.utils import environment


def test_without_an_address_there_is_no_executor() -> None:
    with executor_at(None) as executor:
        assert executor is None


def test_an_absent_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"ray is not installed: pip install 'logitsieve\[ray\]'"
    ):
        executor_at("auto")
