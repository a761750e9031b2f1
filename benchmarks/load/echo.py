"""A grpc.aio server that parses each TopK request and answers all with one reply, in base64.

`python -m benchmarks.load.echo asyncio REPLY`, or uvloop; prints its port.
"""

import asyncio
import base64
import sys
from typing import Any

import grpc
import uvloop

from logitsieve.v1 import decoder_pb2 as pb


async def echo(reply: bytes) -> None:
    answer = pb.TopKResponse.FromString(reply)

    async def top_k(message: bytes, context: Any) -> bytes:
        pb.TopKRequest.FromString(message)
        return answer.SerializeToString()

    server = grpc.aio.server()
    methods = {"TopK": grpc.unary_unary_rpc_method_handler(top_k)}
    handler = grpc.method_handlers_generic_handler("logitsieve.v1.Decoder", methods)
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    run = {"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]]
    run(echo(base64.b64decode(sys.argv[2])))
