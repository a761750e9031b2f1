"""KServe v2, as Triton speaks it: `inference.GRPCInferenceService` beside our own services.

Its stubs are tritonclient's, which the extra `kserve` installs; without it there is no facade.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import grpc

from logitsieve.server.metrics import Metrics
from logitsieve.server.models.repository import Repository

if TYPE_CHECKING:
    from logitsieve.server.rpc.admin_service import AdminService
    from logitsieve.server.rpc.decoder_service import DecoderService

NEEDED = ("tritonclient", "packaging")  # the first needs the second, but may come without it


def kserve_handlers(
    repository: Repository, decoder: DecoderService, metrics: Metrics
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Make the service for the public port."""
    if not all(map(find_spec, NEEDED)):
        return ()
    from logitsieve.server.kserve.service import KserveService

    return (KserveService(repository, decoder, metrics).handler(),)


def kserve_admin_handlers(
    admin: AdminService, metrics: Metrics
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Make the service for the admin port, which loads and unloads."""
    if not all(map(find_spec, NEEDED)):
        return ()
    from logitsieve.server.kserve.service import KserveAdmin

    return (KserveAdmin(admin, metrics).handler(),)
