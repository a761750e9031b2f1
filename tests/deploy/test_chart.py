"""The Helm chart: what it renders is valid, consistent and locked down, whatever the values."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from logitsieve.cli.options import read_options
from logitsieve.client.decoder_client import SERVICE_CONFIG
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Metrics
from logitsieve.utils.environment import is_loopback
from tests.deploy.charts import CHART, VARIANTS, Rendered, render
from tests.deploy.dockerfile import PROJECT, REPOSITORY, read
from tests.deploy.monitoring import ALERTS
from tests.deploy.test_compose import SERVERS

USER = int(read()["runtime"].user.partition(":")[0])
NEWEST = "1.37"
# The oldest that Chart.yaml allows, and the newest that there are schemas for.
METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
KUBERNETES = [METADATA["kubeVersion"].removeprefix(">=").removesuffix(".0-0"), NEWEST]


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=list(VARIANTS))
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(request.param)


def test_lint_finds_nothing() -> None:
    report = helm_python.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [found for found in report["messages"] if found["severity"] > 1] == []
    assert {METADATA["version"], METADATA["appVersion"]} == {PROJECT["project"]["version"]}


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_document_is_valid(rendered: Rendered, version: str) -> None:
    for document in rendered.documents:
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):  # the operator's
            kubernetes_validate.validate(document, version, strict=True)


def test_selectors_find_the_pods_of_their_installation(rendered: Rendered) -> None:
    labels = rendered.pod["metadata"]["labels"].items()
    selectors = [rendered.one("Service")["spec"]["selector"]]
    for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor"):
        selectors += [found["spec"]["selector"]["matchLabels"] for found in rendered.all(kind)]
    for policy in rendered.all("NetworkPolicy"):
        selectors.append(policy["spec"]["podSelector"]["matchLabels"])
    assert all(selector and selector.items() <= labels for selector in selectors)
    other = render(name="other").one("Service")["spec"]["selector"]
    assert not other.items() <= labels


@pytest.mark.parametrize(
    ("overrides", "name", "label"),
    [
        ("", "prod-logitsieve", "logitsieve"),
        ("nameOverride: heads", "prod-heads", "heads"),
        ("nameOverride: pro", "prod", "pro"),
        ("fullnameOverride: decoders", "decoders", "logitsieve"),
    ],
)
def test_names_can_be_given(overrides: str, name: str, label: str) -> None:
    rendered = render(overrides)
    assert {document["metadata"]["name"] for document in rendered.documents} == {name}
    assert rendered.pod["metadata"]["labels"]["app.kubernetes.io/name"] == label


def test_nothing_runs_with_more_rights_than_it_needs(rendered: Rendered) -> None:
    pod = rendered.pod["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == USER
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()


def test_probes_ask_ports_that_there_are(rendered: Rendered) -> None:
    container, proxy = rendered.container, rendered.proxy
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    asked = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {(get["path"], get["port"]) for get in asked} == {
        ("/healthz", "http"),
        ("/readyz", "http"),
    }
    options = rendered.options
    own = "grpc" if proxy is None else "server"
    assert ports == {own: options["port"], "http": options["http_port"]}
    if proxy is not None:  # others reach the proxy alone
        [port] = proxy["ports"]
        assert port["containerPort"] != ports.pop("server")
        ports["grpc"] = port["containerPort"]
        assert {
            proxy[f"{name}Probe"]["tcpSocket"]["port"] for name in ("readiness", "liveness")
        } == {"grpc"}
    for port in rendered.one("Service")["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    for policy in rendered.all("NetworkPolicy"):
        rules = policy["spec"].get("ingress", [])
        assert {port["port"] for rule in rules for port in rule["ports"]} <= ports.keys()
    for monitor in rendered.all("ServiceMonitor"):
        assert monitor["spec"]["endpoints"][0]["port"] in ports


@pytest.mark.parametrize(("console", "scheme"), [("false", "HTTP"), ("true", "HTTPS")])
def test_probes_and_scrapers_speak_tls_to_a_console(console: str, scheme: str) -> None:
    secrets = (
        "tls: {existingSecret: a}, apiKeys: {existingSecret: b}, serviceMonitor: {enabled: true}"
    )
    rendered = render(f"{{{secrets}, config: {{console: {console}}}}}")
    for name in ("startup", "readiness", "liveness"):
        assert rendered.container[f"{name}Probe"]["httpGet"]["scheme"] == scheme
    [endpoint] = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint.get("scheme", "http") == scheme.lower()
    assert rendered.options.get("console", False) == (console == "true")


def test_no_server_is_removed_and_a_drain_ends_before_the_pod_is_killed(rendered: Rendered) -> None:
    deployment = rendered.one("Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pause = rendered.container.get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})
    needed = pause["preStop"]["sleep"]["seconds"] + rendered.options["drain_s"]
    assert rendered.pod["spec"]["terminationGracePeriodSeconds"] > needed + 10
    assert rendered.one("Service")["spec"]["clusterIP"] == "None"  # it names every pod
    scaled = bool(rendered.all("HorizontalPodAutoscaler"))
    assert ("replicas" in deployment) is not scaled


def test_files_of_options_are_mounted_and_only_the_cache_can_be_written(rendered: Rendered) -> None:
    options, mounts = rendered.options, rendered.container["volumeMounts"]
    paths = {PurePosixPath(mount["mountPath"]) for mount in mounts}
    files = (
        "tls_cert",
        "tls_key",
        "tls_client_ca",
        "api_key_file",
        "model_repository",
        "kernel_cache",
    )
    named = [PurePosixPath(options[name]) for name in files if name in options]
    [_, config, *_] = rendered.container["args"]
    for path in [PurePosixPath(config), *named]:
        assert paths & {path, path.parent}
    volumes, proxy = rendered.pod["spec"]["volumes"], rendered.proxy
    if proxy is not None:
        assert all(mount["readOnly"] for mount in proxy["volumeMounts"])
        assert proxy["volumeMounts"][0]["mountPath"] == proxy["args"][-1]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes}
    writable = [mount["mountPath"] for mount in mounts if not mount.get("readOnly")]
    # A folder of the server's own: others of the pod's group may write to the volume's.
    assert writable == [str(PurePosixPath(options["kernel_cache"]).parent)]


def test_a_proxy_reads_the_file_that_was_tested_and_speaks_tls_where_the_server_does() -> None:
    assert render().proxy is None
    plain, tls = (render(VARIANTS[f"behind HAProxy{more}"]) for more in ("", " with TLS"))
    assert plain.proxy is not None
    assert tls.proxy is not None
    file = (CHART / "haproxy.cfg").read_text(encoding="utf-8")
    for rendered in (plain, tls):
        assert rendered.named("logitsieve")["data"]["haproxy.cfg"] == file
    first, second = (
        {variable["name"]: variable["value"] for variable in proxy["env"]}
        for proxy in (plain.proxy, tls.proxy)
    )
    assert first == {"BIND": ":50051", "SERVER": "127.0.0.1:50052"}
    server = {"SERVER": "127.0.0.1:50099", "SERVER_TLS": "1"}
    assert second == {"BIND": ":::8443", "TLS": tls.options["tls_cert"], **server}
    assert "tls" in {mount["name"] for mount in tls.proxy["volumeMounts"]}
    with pytest.raises(helm_python.HelmRenderError, match=r"proxy\.enabled"):
        render("{proxy: {enabled: true}, tls: {existingSecret: a, clientCA: true}}")


def test_tls_and_api_keys_come_from_secrets() -> None:
    assert not {"tls_cert", "api_key_file"} & render().options.keys()
    rendered = render(VARIANTS["tls and API keys"])
    secrets = [v["secret"]["secretName"] for v in rendered.pod["spec"]["volumes"] if "secret" in v]
    assert secrets == ["logitsieve-tls", "logitsieve-api-keys"]
    assert {"tls_cert", "tls_key", "tls_client_ca", "api_key_file"} <= rendered.options.keys()
    assert "tls_client_ca" not in render("tls: {existingSecret: logitsieve-tls}").options


def test_the_server_takes_its_options(rendered: Rendered, tmp_path: Path) -> None:
    text = rendered.named("logitsieve")["data"]["serve.toml"]
    (tmp_path / "serve.toml").write_text(text, encoding="utf-8")
    config = ServeConfig(**read_options(tmp_path / "serve.toml", ServeConfig))
    assert not is_loopback(config.host)
    assert config.model_repository == Path("/models")


def test_options_arrive_and_arguments_variables_and_an_account_can_be_added() -> None:
    rendered, plain = render(VARIANTS["everything"]), render()
    given = yaml.safe_load(VARIANTS["everything"])["config"]
    assert {name: rendered.options[name] for name in given} == given
    assert rendered.container["args"][2:] == ["--log-level", "debug"]
    threads, node = rendered.container["env"]
    assert threads == {"name": "LOGITSIEVE_SERVE_THREADS", "value": "2"}
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert rendered.pod["spec"]["serviceAccountName"] == "decoders"
    assert rendered.pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert "env" not in plain.container
    assert "serviceAccountName" not in plain.pod["spec"]


def test_the_rules_find_the_servers_that_the_operator_scrapes() -> None:
    rendered = render("serviceMonitor: {enabled: true}", name="anything")
    label = rendered.one("ServiceMonitor")["spec"]["jobLabel"]
    job = rendered.one("Service")["metadata"]["labels"][label]
    assert f'up{{job="{job}"}} == 0' in ALERTS["LogitsieveInstanceDown"]["expr"]


def test_a_changed_option_starts_new_pods() -> None:
    pods = [render(f"config: {{threads: {threads}}}").pod for threads in (1, 2, 2)]
    marks = [pod["metadata"]["annotations"]["checksum/config"] for pod in pods]
    assert marks[0] != marks[1] == marks[2]


def scaled_by(values: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = render(values).one("HorizontalPodAutoscaler")["spec"]["metrics"]
    return found


def test_it_scales_by_queue_time_which_the_adapter_reads_by_cpu_or_by_both() -> None:
    queue, cpu = scaled_by(VARIANTS["scaled by both"])
    assert scaled_by("") == [queue]
    assert scaled_by(VARIANTS["scaled by CPU"]) == [cpu]
    assert cpu["resource"]["target"]["averageUtilization"] == 70
    assert queue["pods"]["target"]["averageValue"] == "1000"
    text = (CHART.parent / "prometheus-adapter.yaml").read_text(encoding="utf-8")
    [rule] = yaml.safe_load(text)["rules"]["custom"]
    assert scaled_by("")[0]["pods"]["metric"]["name"] == rule["name"]["as"]
    series = rule["seriesQuery"].partition("{")[0].removesuffix("_bucket")
    assert f"# TYPE {series} histogram" in Metrics().text().decode()
    for part in ("<<.Series>>", "<<.LabelMatchers>>", "<<.GroupBy>>", "(0.95,", "1e6"):
        assert part in rule["metricsQuery"]


def test_without_peers_nobody_is_let_in() -> None:
    for name, values in VARIANTS.items():
        for policy in render(values).all("NetworkPolicy"):
            assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
            assert ("egress" in policy["spec"]) is (name == "spans")
            # An empty `from` would let everybody in.
            assert all(rule["from"] for rule in policy["spec"].get("ingress", []))
    assert "ingress" not in render(VARIANTS["closed to all"]).one("NetworkPolicy")["spec"]


def test_spans_reach_their_collector_and_nobody_else_is_called() -> None:
    spans, names = render(VARIANTS["spans"]).one("NetworkPolicy")["spec"]["egress"]
    assert spans["to"] == [{"namespaceSelector": {}}]
    assert spans["ports"] == [{"port": 4318, "protocol": "TCP"}]
    assert {port["port"] for port in names["ports"]} == {53}
    usual = VARIANTS["spans"].replace(":4318", "")
    assert render(usual).one("NetworkPolicy")["spec"]["egress"][0]["ports"][0]["port"] == 4317
    alone = "config: {otlp_endpoint: 'http://collector:4317'}"
    with pytest.raises(helm_python.HelmRenderError, match=r"networkPolicy\.collector"):
        render(alone)
    assert render(f"{{{alone}, networkPolicy: {{enabled: false}}}}").documents


def test_a_pod_has_limits_on_memory_and_disk() -> None:
    resources = render().container["resources"]
    assert resources["limits"].keys() == {"memory", "ephemeral-storage"}
    assert resources["requests"].keys() >= resources["limits"].keys()
    gpu = render(VARIANTS["on GPUs"]).container["resources"]["limits"]
    assert gpu.keys() > resources["limits"].keys()


def test_rules_and_the_dashboard_arrive_as_they_were_given() -> None:
    given = yaml.safe_load(VARIANTS["everything"])["monitoring"]
    rendered = render(VARIANTS["everything"])
    assert rendered.one("PrometheusRule")["spec"] == yaml.safe_load(given["rules"])
    dashboard = rendered.named("-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"] == {"logitsieve.json": given["dashboard"]}
    assert json.loads(given["dashboard"])["legend"] == '{{model}} "p95"'


def test_the_runbook_selects_the_pods_of_the_chart() -> None:
    page = (REPOSITORY / "docs" / "runbook.md").read_text(encoding="utf-8")
    labels = render("").one("Deployment")["spec"]["template"]["metadata"]["labels"]
    selected = set(re.findall(r"--selector (\S+?)=(\w+)", page))
    assert selected == {("app.kubernetes.io/name", labels["app.kubernetes.io/name"])}


def test_alerts_link_to_the_runbook_where_it_is_kept() -> None:
    rules = "groups: [{name: a, rules: [{annotations: {runbook_url: 'docs/runbook.md#b'}}]}]"
    url = "https://pages.example/runbook.html"
    [group] = render(f"monitoring: {{rules: {json.dumps(rules)}, runbookUrl: '{url}'}}").one(
        "PrometheusRule"
    )["spec"]["groups"]
    assert group["rules"][0]["annotations"]["runbook_url"] == f"{url}#b"


def test_rules_without_groups_documents_that_are_left_out_and_a_digest() -> None:
    with pytest.raises(helm_python.HelmRenderError, match="a file with groups of rules"):
        render("monitoring: {rules: 'alert: Shedding'}")
    kinds = {document["kind"] for document in render(VARIANTS["nothing optional"]).documents}
    assert kinds == {"ConfigMap", "Deployment", "Service"}
    digest = "sha256:" + "0" * 64
    assert render("image: {tag: next}").container["image"] == "logitsieve:next"
    values = f'image: {{tag: next, digest: "{digest}"}}'  # which goes before the tag
    assert render(values).container["image"] == f"logitsieve@{digest}"


def test_on_gpus_each_pod_has_one_and_says_so_to_the_server() -> None:
    rendered = render(VARIANTS["on GPUs"])
    assert rendered.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu" not in render().container["resources"]["limits"]
    assert rendered.options["device"] == "cuda"
    assert "device" not in render().options
    assert rendered.container["image"] == "logitsieve:gpu"
    assert "gpu" in read()


def test_clients_are_given_the_settings_of_ours_and_the_addresses() -> None:
    page = (REPOSITORY / "docs" / "deployment.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json.loads(shown) == json.loads(SERVICE_CONFIG)
    ports = [server["ports"][0].rpartition(":")[0] for server in SERVERS.values()]
    assert f'DecoderClient("ipv4:{",".join(ports)}")' in page
    service = render(name="decoders", namespace="decoders").one("Service")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert f'DecoderClient("dns:///{name}.decoders.svc:{port}")' in page


def test_the_claim_and_the_secrets_of_the_page_are_what_the_chart_mounts() -> None:
    page = (REPOSITORY / "docs" / "deployment.md").read_text(encoding="utf-8")
    claim, job = yaml.safe_load_all((CHART.parent / "loader.yaml").read_text(encoding="utf-8"))
    for document in (claim, job):
        kubernetes_validate.validate(document, NEWEST, strict=True)
    assert f"job/{job['metadata']['name']} " in page
    pod = job["spec"]["template"]["spec"]
    secrets = re.findall(r"kubectl create secret (?:tls|generic) ([a-z][a-z-]+) ", page)
    options = dict(re.findall(r"--set (\w+)\.existingSecret=([a-z-]+)", page))
    values = "".join(f"{key}: {{existingSecret: {name}}}\n" for key, name in options.items())
    mounted = render(values).one("Deployment")["spec"]["template"]["spec"]
    names = [each["secret"]["secretName"] for each in mounted["volumes"] if "secret" in each]
    assert sorted(names) == sorted(secrets) == sorted(options.values())
    claims = [
        each["persistentVolumeClaim"]["claimName"]
        for spec in (pod, mounted)
        for each in spec["volumes"]
        if "persistentVolumeClaim" in each
    ]
    assert claims == 2 * [claim["metadata"]["name"]]
    run_as = mounted["securityContext"]
    assert pod["securityContext"]["runAsUser"] == run_as["runAsUser"]
