"""Ray: its actors answer for shards of an index, and its workers share a build."""

from dataclasses import dataclass
from typing import Literal

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.options import check_ranges, option


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options of `logitsieve ray up`; InvalidRequest names a bad one."""

    replicas: int = option(1, "Processes that answer for each shard.", 1)
    cpus: float = option(1.0, "Processors that Ray reserves for each of them.", 0, 1024)
    serve_on: str = option(
        "", "Ray's resource of the nodes that each get an ingress; if empty, this node."
    )
    missing: Literal["refuse", "answer"] = option(
        "refuse", "What becomes of a request while a shard does not answer."
    )
    patience_s: float = option(1.0, "Seconds to wait for a shard.", 0.001, 3600)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.missing not in ("refuse", "answer"):
            raise InvalidRequest("missing", repr(self.missing), "'refuse' or 'answer'")
