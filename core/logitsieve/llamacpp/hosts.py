from collections.abc import Callable, Mapping

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.host import Host
from logitsieve.llamacpp.ik import ik_llama_cpp
from logitsieve.llamacpp.xllamacpp import xllamacpp

LLAMACPP, IK, AUTO = "llamacpp", "ik", "auto"
HOSTS: Mapping[str, Callable[[], Host]] = {LLAMACPP: xllamacpp, IK: ik_llama_cpp}
ENGINES = (*HOSTS, AUTO)


def host_of(engine: str | Host) -> Host:
    if isinstance(engine, Host):
        return engine
    if engine not in HOSTS:
        raise InvalidRequest("engine", repr(engine), ", ".join(HOSTS))
    return HOSTS[engine]()
