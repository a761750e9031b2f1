"""Material for servers in tests: gates before computations, damaged files, certificates.

And a model that is precise on one domain and not on another.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from logitsieve.api.results import ArrayLike, TopK
from logitsieve.heads import Head
from logitsieve.index import Index, open_index
from logitsieve.server import ServeConfig
from logitsieve.server.models.repository import Opened, Repository, open_configured
from logitsieve.utils.options import Progress
from tests.server.running import WAIT_S, calibration, entries
from tests.synthetic import make_head, make_softmax, write_heads


class Gate:
    """Holds computations while it is shut, and counts them."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.computed = 0
        self.failure: Exception | None = None
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.computed = 0
        self.entered = threading.Semaphore(0)
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=WAIT_S)

    def through(self) -> None:
        self.computed += 1
        self.entered.release()
        assert self._open.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure


class GatedHead:
    def __init__(self, head: Head, gate: Gate) -> None:
        self._head, self._gate = head, gate

    def with_knobs(self, **knobs: float) -> GatedHead:
        return GatedHead(self._head.with_knobs(**knobs), self._gate)

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK:
        self._gate.through()
        return self._head.topk(hidden_states, k)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)


class GatedIndex:
    def __init__(self, index: Index, gate: Gate) -> None:
        self._index, self._gate = index, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def head(self, name: str = "") -> GatedHead:
        return GatedHead(self._index.head(name), self._gate)


def gated(config: ServeConfig, gate: Gate) -> Repository:
    def opener(path: Path, config: ServeConfig, progress: Progress) -> Index:
        return cast(Index, GatedIndex(cast(Index, open_configured(path, config, progress)), gate))

    return Repository(config, opener)


class Door(Gate):
    """Opens indexes; while it is shut, callers wait. Counts its calls."""

    def __call__(self, path: Path, config: ServeConfig, progress: Progress) -> Opened:
        self.through()
        return open_configured(path, config, progress)


def replace_file(file: Path, content: bytes) -> None:
    """Another file of the name: what is mapped of the old one stays as it is."""
    new = file.with_name("new")
    new.write_bytes(content)
    new.replace(file)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    replace_file(file, bytes(content))


def write_api_keys(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "api_keys"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(mode)
    return file


def mapped(path: Path) -> bool:
    return f"{path}/" in Path("/proc/self/maps").read_text()


def ids_by_digest(models: Path, hidden_states: np.ndarray, k: int) -> dict[str, bytes]:
    """The ids that each version of "demo" answers, computed apart from the server."""
    indexes = [open_index(path) for path in sorted((models / "demo").iterdir()) if path.is_dir()]
    found = {index.digest: index.head().topk(hidden_states, k).ids.tobytes() for index in indexes}
    assert len(set(found.values())) == len(indexes)
    return found


V, D, TOPICS = 300, 24, 12
TARGET_PRECISION = {"p1": 0.97, "p5": 0.95}


def contexts(domain: int, rows: int, seed: int = 0) -> np.ndarray:
    """float32 [rows, D] around the topics of a domain."""
    topics = np.random.default_rng(domain).standard_normal((TOPICS, D)) * 2
    random = np.random.default_rng([domain, seed])
    noise = 0.1 * random.standard_normal((rows, D))
    return (topics[random.integers(TOPICS, size=rows)] + noise).astype(np.float32)


def screen_of(domain: int) -> dict[str, np.ndarray]:
    """A list for each topic: the exact top 10 of what was seen there."""
    hidden_states = contexts(domain, 2000, seed=1)
    centroids = np.random.default_rng(domain).standard_normal((TOPICS, D)).astype(np.float32)
    labels = make_head("full", make_softmax()).topk(hidden_states, 10).ids
    unit = centroids / np.linalg.norm(centroids, axis=1, keepdims=True)
    nearest = (hidden_states @ unit.T).argmax(axis=1)
    lists = [np.unique(labels[nearest == topic]) for topic in range(TOPICS)]
    return {
        "centroids": unit.astype(np.float32),
        "offsets": np.cumsum([0, *map(len, lists)]).astype(np.int32),
        "ids": np.concatenate(lists).astype(np.int32),
    }


def write_domains(models: Path) -> Path:
    """models/demo/1, fitted to domain 1, for TARGET_PRECISION: AUTO takes one probe of the screen.

    Four probes are said to be more precise, and are not on another domain either.
    """
    measured = calibration(
        entries("full", (90.0, 80.0, 60.0), 1.0),
        entries("screen", (1.0, 1.0, 1.0), 0.98, probes=1),
        entries("screen", (2.0, 2.0, 2.0), 0.995, probes=2),
    )
    return write_heads(
        models / "demo" / "1",
        make_softmax(),
        "screen",
        parts={"screen": screen_of(1)},
        calibration=measured,
        config={"target_precision": TARGET_PRECISION},
    )


FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def cert_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    def write(self, folder: Path, name: str = "tls") -> tuple[Path, Path]:
        """(certificate, key) as files."""
        cert, key = folder / f"{name}.crt", folder / f"{name}.key"
        cert.write_bytes(self.cert_pem)
        key.write_bytes(self.key_pem)
        key.chmod(0o600)
        return cert, key


def authority(name: str = "authority") -> Pair:
    """A certificate that signs itself."""
    return _pair(name, None)


def signed_by(issuer: Pair, name: str = "server") -> Pair:
    """A certificate of a server at 127.0.0.1, or of a client."""
    return _pair(name, issuer)


def _pair(name: str, issuer: Pair | None) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    may_sign = x509.BasicConstraints(ca=issuer is None, path_length=None)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(UNTIL)
        .add_extension(may_sign, critical=True)
        .add_extension(names, critical=False)
        .sign(issuer.key if issuer else key, hashes.SHA256())
    )
    return Pair(made, key)
