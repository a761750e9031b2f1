"""deploy/ray: what KubeRay makes pods of, and the command that deploys on them."""

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from logitsieve.cli.app import app
from tests.deploy.dockerfile import PROJECT, REPOSITORY

FOLDER = REPOSITORY / "deploy" / "ray"
CLUSTER, *OTHERS = yaml.safe_load_all((FOLDER / "cluster.yaml").read_text(encoding="utf-8"))
UP = yaml.safe_load((FOLDER / "up.yaml").read_text(encoding="utf-8"))
GROUPS: dict[str, dict[str, Any]] = {
    "head": CLUSTER["spec"]["headGroupSpec"],
    **{group["groupName"]: group for group in CLUSTER["spec"]["workerGroupSpecs"]},
}
VERSION = "1.34"


def pod(group: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": "pod"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": group["template"]["spec"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    [only] = group["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_pods_are_valid_and_locked_down(group: str) -> None:
    made = pod(GROUPS[group])
    kubernetes_validate.validate(made, VERSION, strict=True)
    assert made["spec"]["securityContext"]["runAsNonRoot"] is True
    only = container(GROUPS[group])
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert only["readinessProbe"]
    assert only["livenessProbe"]
    volumes = {volume["name"] for volume in made["spec"]["volumes"]}
    assert {mount["name"] for mount in only["volumeMounts"]} == volumes


@pytest.mark.parametrize("document", OTHERS, ids=lambda document: document["kind"])
def test_what_lies_around_them_is_valid(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_service_and_the_policy_select_what_there_is() -> None:
    service, policy = OTHERS
    name = CLUSTER["metadata"]["name"]
    assert service["spec"]["selector"] == {"ray.io/cluster": name, "ray.io/group": "ingress"}
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": name}
    ports = [port["containerPort"] for port in container(GROUPS["ingress"])["ports"]]
    assert [port["port"] for port in service["spec"]["ports"]] == ports
    assert [port["port"] for port in policy["spec"]["ingress"][1]["ports"]] == ports


def test_ray_is_the_one_that_is_tested_and_wants_a_token() -> None:
    pinned = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    assert f"\nray=={CLUSTER['spec']['rayVersion']}\n" in pinned
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    assert "ray" in PROJECT["project"]["optional-dependencies"]


def test_up_has_these_options_and_the_resource_of_the_ingress() -> None:
    entry = UP["spec"]["entrypoint"]
    assert UP["spec"]["clusterSelector"] == {"ray.io/cluster": CLUSTER["metadata"]["name"]}
    program, command, action, *rest = entry.split()
    assert (program, command, action) == ("logitsieve", "ray", "up")
    shown = CliRunner().invoke(app, ["ray", "--help"]).stdout
    for option in rest:
        if option.startswith("--"):
            assert option in shown, option
    resource = rest[rest.index("--serve-on") + 1]
    assert re.search(rf'\\"{resource}\\": 1', GROUPS["ingress"]["rayStartParams"]["resources"])
    mounts = container(GROUPS["shards"])["volumeMounts"]
    [models] = [mount for mount in mounts if mount["name"] == "models"]
    assert rest[rest.index("--model-repository") + 1] == models["mountPath"]
    [_, http] = container(GROUPS["ingress"])["ports"]
    assert rest[rest.index("--http-port") + 1] == str(http["containerPort"])
