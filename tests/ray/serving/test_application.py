"""The application in Ray Serve answers as the server does."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.ray.serving.running import Deployed
from tests.sharded import D
from tests.synthetic import make_hidden

pytestmark = pytest.mark.ray


def test_it_answers_with_the_messages_of_the_server(deployed: Deployed) -> None:
    serve = pytest.importorskip("ray.serve")
    made = pytest.importorskip("logitsieve.ray.serving.application")
    hidden = make_hidden(3, D)
    handle = serve.run(
        made.application({"models": str(deployed.models)}), name="decoder", route_prefix=None
    )
    request = pb.TopKRequest(hidden=put(pb.Tensor(), hidden), k=4, target=pb.Target(model="lm"))
    reply = handle.TopK.remote(request).result(timeout_s=60)
    right = deployed.client.topk(hidden, 4)
    ids = np.frombuffer(reply.ids.data, np.int32).reshape(3, 4)
    np.testing.assert_array_equal(ids, right.ids)
    wrong = pb.TopKRequest(hidden=put(pb.Tensor(), hidden), k=0)
    with pytest.raises(Exception, match="k: got 0"):
        handle.TopK.remote(wrong).result(timeout_s=60)
    serve.delete("decoder")


def test_its_arguments_are_checked() -> None:
    made = pytest.importorskip("logitsieve.ray.serving.application")
    with pytest.raises(InvalidRequest, match="model: got x, allowed: models, missing, replicas"):
        made.application({"model": "x"})
    with pytest.raises(InvalidRequest, match="models: got nothing"):
        made.application({})
    with pytest.raises(InvalidRequest, match="missing: got 'guess'"):
        made.application({"models": "m", "missing": "guess"})
    with pytest.raises(InvalidRequest, match="replicas: got '-1'"):
        made.application({"models": "m", "replicas": "-1"})
