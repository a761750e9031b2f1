"""Write the generated pages of docs/reference/: `make reference`.

Commands from their help, gRPC messages from decoder.proto, errors from their classes and limits
from the server's options, metrics from the collectors, values of the chart from values.yaml.
tests/tools/test_reference.py says whether they are current.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from http import HTTPStatus
from inspect import getdoc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.metrics_core import Metric

from logitsieve.api import errors
from logitsieve.cli.app import BAD_INPUT, COMMANDS, COULD_NOT, LazyCommand
from logitsieve.cli.build import ALL_CORES
from logitsieve.completions.app import Metrics as CompletionMetrics
from logitsieve.completions.front import Front
from logitsieve.server.config import ServeConfig
from logitsieve.server.http.application import STATUSES
from logitsieve.server.metrics import Counters, Devices, Histograms, Metrics
from logitsieve.server.precision import PrecisionMetrics
from logitsieve.server.rpc.status import CODES

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "proto/logitsieve/v1/decoder.proto"
VALUES = ROOT / "deploy/helm/logitsieve/values.yaml"
GENERATED = "<!-- `make reference` writes this page. -->\n\n"
ENGINE = "running", "waiting"  # what the metrics of `serve-gguf` read of its loop
COUNTS = "prompt_tokens", "tokens", "scanned", "drafted", "accepted"
BAD = errors.InvalidRequest, errors.ModelNotFound
ENTRY = re.compile(r"(?P<indent> *)(?P<name>[\w-]+): *(?P<default>[^#]*?)(?: # .*)?")
FIELD = re.compile(r"(?P<type>(?:repeated |optional )?[\w.<>, ]+) (?P<name>\w+) = \d+;")


def main() -> None:
    for name, make in PAGES.items():
        path, text = path_of(name), make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")


def path_of(name: str) -> Path:
    return ROOT / f"docs/reference/{name}.md"


def table(head: list[str], rows: list[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(line) + " |\n" for line in (head, *cells)]
    return re.sub(r"\|  (?=\|)", "| ", "".join([lines[0], "|---" * len(head), "|\n", *lines[1:]]))


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def commands() -> str:
    """Each command with its options, their defaults and ranges."""
    text = (
        f"# Commands\n\n{GENERATED}What `logitsieve COMMAND --help` shows of every command; [the"
        " command](../cli.md) has exit codes, sources of arrays and examples. Options of `serve`"
        " are\nalso variables of the environment and lines of a file"
        " ([how](../service.md#options)).\n\n"
    )
    rows = [
        [f"[`{name}`](#{name})", entry.summary, code(entry.extra) or "none"]
        for name, entry in COMMANDS.items()
    ]
    text += table(["command", "action", "extra"], rows)
    for name, entry in COMMANDS.items():
        context = LazyCommand(name, entry).make_context(name, [], resilient_parsing=True)
        about = (context.command.help or "").replace("\n\x08\n", "\n").replace("V]", "V\\]")
        about, _, example = about.partition("Example: ")
        extra = f"It needs the extra `{entry.extra}`.\n\n" if entry.extra else ""
        about = about.strip().replace("*", "\\*").replace("<", "\\<")
        text += f"\n## `{name}`\n\n{about}\n\n{extra}    {example}\n\n"
        records = [parameter.get_help_record(context) for parameter in context.command.params]
        text += table(["option", "action"], [option_row(*each) for each in records if each])
    return text


def option_row(names: str, about: str) -> list[str]:
    """An option and its help, in which the default is no machine's own."""
    if names.startswith("--threads"):
        about = about.replace(f"[default: {ALL_CORES.threads};", "[default: all cores;")
    return [code(names), re.sub(r"  \[(.*)\]$", r" (\1)", about).replace("<", "\\<")]


def comments(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each line that is none, without its indent, and the comment above it."""
    above: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("//"):
            above.append(line[2:].strip())
        else:
            if line:
                yield line, " ".join(above)
            above = []


def messages() -> str:
    """Services, messages and enums of the gRPC contract."""
    text = (
        f"# gRPC messages\n\n{GENERATED}Comments of [decoder.proto]"
        "(../../proto/logitsieve/v1/decoder.proto), the contract.\n[Clients](../clients.md) says"
        " how to call it.\n"
    )
    rows: list[list[str]] = []
    head = ["name", "type", "meaning"]
    for line, about in comments(PROTO.read_text(encoding="utf-8").splitlines()):
        if opened := re.fullmatch(r"(service|message|enum) (\w+) \{(\})?", line):
            text += (table(head, rows) if rows else "") + f"\n## {opened[2]}\n\n{about}\n\n"
            rows = []
        elif of := re.match(r"rpc (\w+)\((.*?)\) returns \((.*?)\);", line):
            rows.append([code(of[1]), f"{code(of[2])} to {code(of[3])}", about])
        elif found := FIELD.fullmatch(line):
            rows.append([code(found["name"]), code(found["type"]), about])
        elif constant := re.fullmatch(r"([A-Z]\w*) = (\d+);", line):
            rows.append([code(constant[1]), constant[2], about])
    return text + table(head, rows)


def families() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Every series of both servers, with its labels."""
    server = Metrics()
    precision = PrecisionMetrics(server.registry, list)
    Devices("cpu", server.registry)
    loop: Any = SimpleNamespace(**dict.fromkeys(ENGINE, ()), **dict.fromkeys(COUNTS, 0))
    completions = CompletionMetrics(loop)
    labels: dict[str, Any] = {
        series._about["name"]: series._about["labels"]
        for each in (server, precision)
        for series in vars(each).values()
        if isinstance(series, Counters | Histograms)
    }
    front = Front(lambda _: None)
    for counter in (completions.answered, front._refused):
        labels[counter._name] = counter._labelnames
    for registry in (server.registry, completions._registry, front._registry):
        for family in sorted(registry.collect(), key=lambda family: family.name):
            if family.name.startswith("logitsieve"):
                known = labels.get(family.name) or getattr(family, "_labelnames", ())
                yield family, tuple(known or ())


def metrics() -> str:
    """Name, type, labels and meaning of each series."""
    rows = []
    for family, labels in families():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        about = family.documentation.rstrip(".")
        rows.append([code(name), family.type, ", ".join(map(code, labels)), about])
    return (
        f"# Metrics\n\n{GENERATED}What `/metrics` of [`serve`](../monitoring.md), and, as"
        " `logitsieve_completions_...`, of [`serve-gguf`](../completions.md) has. Durations are in"
        "\nseconds, sizes in bytes.\n\n" + table(["series", "type", "labels", "meaning"], rows)
    )


def values() -> str:
    """Each value of the chart with its default."""
    rows: list[list[str]] = []
    path: list[str] = []
    above: list[str] = []
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("#"):
            above.append(line.strip()[1:].strip())
            continue
        entry = ENTRY.fullmatch(line)
        if entry and (depth := len(entry["indent"]) // 2) <= len(path):  # else of a list
            path = [*path[:depth], entry["name"]]
            if entry["default"] or above:
                about = " ".join(above).replace("<", "\\<")
                rows.append([code(".".join(path)), code(entry["default"]), about])
        above = []
    return (
        f"# Values of the Helm chart\n\n{GENERATED}Comments of [values.yaml]"
        "(../../deploy/helm/logitsieve/values.yaml). [Deployment](../deployment.md#helm)\nhas the"
        " ones that every installation sets.\n\n" + table(["value", "default", "meaning"], rows)
    )


def failures() -> str:
    """Each exception with its gRPC code, HTTP status and exit code; the limits of requests."""
    rows = []
    for kind, grpc_code in CODES.items():
        status = STATUSES.get(grpc_code, HTTPStatus.INTERNAL_SERVER_ERROR)
        if kind is errors.RequestTooLarge:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        end = BAD_INPUT if issubclass(kind, BAD) else COULD_NOT
        about = (getdoc(kind) or "").partition("\n\n")[0]
        rows.append([code(kind.__name__), grpc_code.name, str(status.value), str(end), about])
    limits = [
        [code(f"--{each.name.replace('_', '-')}"), code(str(each.default)), each.metadata["help"]]
        for each in fields(ServeConfig)
        if each.name.startswith(("max_", "request_memory", "drain")) and each.name != "max_error"
    ]
    return (
        f"# Errors, exit codes and limits\n\n{GENERATED}The exceptions of `logitsieve.api.errors`,"
        " each with the code of a gRPC call, the status of an HTTP request and\nthe exit code of a"
        " command that end by it. A command that succeeds exits with 0, and one that Ctrl-C"
        " interrupts with 130;\n`serve` and `serve-gguf` then drain and exit with 0. [The service]"
        "(../service.md#errors) says which calls are worth a retry.\n\n"
        + table(["exception", "gRPC code", "HTTP", "exit", "cause"], rows)
        + "\n## Limits of requests\n\n[Security](../security.md#limits) has the limits of"
        " connections.\n\n" + table(["option of `serve`", "default", "meaning"], limits)
    )


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "messages": messages,
    "errors": failures,
    "metrics": metrics,
    "helm": values,
}

if __name__ == "__main__":
    main()
