"""The dashboard of Grafana, and how it is provisioned."""

from itertools import product
from typing import Any

import pytest
import yaml

from tests.deploy.monitoring import DASHBOARD, GRAFANA, PANELS
from tests.deploy.test_compose import COMPOSE

VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
ASKED = [
    *("Requests a second", "Error codes", "Latency by RPC", "Time in the queue"),
    *("Time of computing", "Rows a second by head", "Share of rows handed to the fallback"),
    *("Proven share of rows", "Live precision@k", "Missed probability a row"),
    *("Points left by the guard", "Refused before computing", "Indexes", "GPU memory", "GPU time"),
]


def test_what_an_operator_looks_for_is_there_for_the_models_that_are_loaded() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert set(ASKED) <= set(titles)
    assert len(titles) == len(set(titles))
    assert VARIABLES["model"]["query"]["query"] == "label_values(logitsieve_index_info, model)"
    assert VARIABLES["model"]["allValue"] == ".+"


def test_ids_differ_and_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        x, y, width, height = (at[name] for name in "xywh")
        cells = set(product(range(x, x + width), range(y, y + height)))
        assert x + width <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["legendFormat"] or panel["type"] == "table"
        used = {word for word in VARIABLES if f"${word}" in target["expr"]}
        assert used <= {"model"}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    sources, providers = (
        yaml.safe_load((GRAFANA / "provisioning" / path).read_text())
        for path in ("datasources/prometheus.yml", "dashboards/logitsieve.yml")
    )
    (source,), (provider,) = sources["datasources"], providers["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in COMPOSE["services"]
    mounted = [text.split(":") for text in COMPOSE["services"]["grafana"]["volumes"]]
    folders = {place[1]: place[0] for place in mounted}
    assert folders[provider["options"]["path"]] == "./grafana/dashboards"
    assert folders["/etc/grafana/provisioning"] == "./grafana/provisioning"
