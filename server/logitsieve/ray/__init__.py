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
        "", "Resource of the nodes that get an ingress each; this node if absent."
    )
    missing: Literal["refuse", "answer"] = option(
        "refuse", "What becomes of a request while a shard does not answer."
    )
    patience_s: float = option(1.0, "Seconds that a shard is waited for.", 0.001, 3600)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.missing not in ("refuse", "answer"):
            raise InvalidRequest("missing", repr(self.missing), "'refuse' or 'answer'")
