"""KServe v2, as Triton speaks it: `inference.GRPCInferenceService` beside our own services.

Its stubs are tritonclient's, which the extra `kserve` installs; without it there is no facade.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import grpc

from logitsieve.server.metrics import Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.rpc.stream import Answer

if TYPE_CHECKING:
    from logitsieve.server.rpc.admin_service import AdminService

NEEDED = ("tritonclient", "packaging")  # the second by the first, where its own extra is left out


def kserve_handlers(
    repository: Repository, answer: Answer, metrics: Metrics
) -> tuple[grpc.GenericRpcHandler, ...]:
    """The service for the public port."""
    if not all(map(find_spec, NEEDED)):
        return ()
    from logitsieve.server.kserve.service import KserveService

    return (KserveService(repository, answer, metrics).handler(),)


def kserve_admin_handlers(
    admin: AdminService, metrics: Metrics
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Loading and unloading, for the admin port."""
    if not all(map(find_spec, NEEDED)):
        return ()
    from logitsieve.server.kserve.admin import KserveAdmin

    return (KserveAdmin(admin, metrics).handler(),)
