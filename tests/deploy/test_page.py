"""docs/deployment.md says what the code does."""

import json
import re

from logitsieve.client.decoder_client import SERVICE_CONFIG
from tests.deploy.charts import render
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.test_compose import SERVERS

PAGE = (REPOSITORY / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_clients_are_given_the_settings_of_ours_and_the_addresses() -> None:
    [shown] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(shown) == json.loads(SERVICE_CONFIG)
    ports = [server["ports"][0].rpartition(":")[0] for server in SERVERS.values()]
    assert f'DecoderClient("ipv4:{",".join(ports)}")' in PAGE
    service = render(name="decoders", namespace="decoders").one("Service")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert f'DecoderClient("dns:///{name}.decoders.svc:{port}")' in PAGE
