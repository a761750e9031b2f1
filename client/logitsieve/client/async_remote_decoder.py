"""The Decoder protocol to be awaited: RemoteDecoder's own methods over a `_ask` that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from logitsieve.client.remote_decoder import RemoteDecoder
from logitsieve.client.replies import R, to_reply

P = ParamSpec("P")
T = TypeVar("T")
Awaited = Callable[Concatenate["AsyncRemoteDecoder", P], Coroutine[Any, Any, T]]


def awaited(method: Callable[Concatenate[RemoteDecoder, P], T]) -> Awaited[P, T]:
    """A method that makes a request and returns what `_reply` does, which is to be awaited here."""
    return cast("Awaited[P, T]", method)


class AsyncRemoteDecoder(ABC):
    """The four methods of a decoder; `async with` closes it at its end. See `RemoteDecoder`."""

    topk = awaited(RemoteDecoder.topk)
    score = awaited(RemoteDecoder.score)
    sample = awaited(RemoteDecoder.sample)
    beam_step = awaited(RemoteDecoder.beam_step)

    @abstractmethod
    async def _ask(self, rpc: str, request: Any) -> Any:
        """The response to a request of the RPC called so, or one of our exceptions."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _reply(self, kind: type[R], rpc: str, request: Any) -> R:
        return to_reply(kind, await self._ask(rpc, request))
