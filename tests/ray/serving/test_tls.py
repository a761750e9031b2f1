"""An ingress with a certificate and a token: every call needs both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import ServiceError, Unauthenticated
from logitsieve.client import DecoderClient, Tls
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.ray.serving.conftest import Indexes
from tests.ray.serving.running import Deployed
from tests.server.materials import authority, signed_by
from tests.sharded import D
from tests.synthetic import make_hidden

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

TOKEN = "a-token-of-readers"


def test_clients_need_the_token_and_trust_the_certificate(
    deployed: Deployed, indexes: Indexes, kernel_cache: Path, tmp_path: Path
) -> None:
    made = pytest.importorskip("logitsieve.ray.serving.deployment")
    ca = authority()
    cert, key = signed_by(ca).write(tmp_path)
    trusted = Tls(ca=ca.write(tmp_path, "ca")[0])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read:{TOKEN}\nadmin:{TOKEN}-of-admins\n")
    tokens.chmod(0o600)
    open_to_all, address = deployed.config, f"127.0.0.1:{deployed.config.port}"
    whole = LocalDecoder(open_index(indexes.whole / "lm" / "1", kernel_cache=kernel_cache))
    hidden = make_hidden(3, D)
    made.remove()
    deployed.config = replace(open_to_all, tls_cert=cert, tls_key=key, tokens=tokens)
    try:
        deployed.up()
        with DecoderClient(address, tls=trusted, token=TOKEN, timeout_s=10.0) as client:
            np.testing.assert_array_equal(client.topk(hidden, 5).ids, whole.topk(hidden, 5).ids)
        with (
            DecoderClient(address, tls=trusted, token="another", timeout_s=2.0) as client,
            pytest.raises(Unauthenticated),
        ):
            client.topk(hidden, 5)
        with DecoderClient(address, timeout_s=2.0) as client, pytest.raises(ServiceError):
            client.topk(hidden, 5)
    finally:
        made.remove()
        deployed.config = open_to_all
        deployed.up()
