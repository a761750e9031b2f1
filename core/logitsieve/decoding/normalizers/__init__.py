"""The normalizers, by their names in requests, manifests and metrics: the only list of them."""

from collections.abc import Mapping

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding.normalizers.base import LogZ, Normalizer, Prices
from logitsieve.decoding.normalizers.candidates import CandidatesNormalizer
from logitsieve.decoding.normalizers.certified import CertifiedNormalizer, interval
from logitsieve.decoding.normalizers.exact import ExactNormalizer
from logitsieve.decoding.normalizers.lowrank import LowRankNormalizer
from logitsieve.decoding.normalizers.sampled import SampledNormalizer
from logitsieve.index import Index

__all__ = [
    "CANDIDATES",
    "CERTIFIED",
    "EXACT",
    "NORMALIZERS",
    "SAMPLED",
    "STEPPING",
    "LogZ",
    "Normalizer",
    "Prices",
    "default_normalizer",
    "find_normalizer",
    "interval",
]

CANDIDATES, SAMPLED = CandidatesNormalizer(), SampledNormalizer()
CERTIFIED, EXACT = CertifiedNormalizer(), ExactNormalizer()
NORMALIZERS: Mapping[str, Normalizer] = {
    each.name: each for each in (CANDIDATES, LowRankNormalizer(), SAMPLED, CERTIFIED, EXACT)
}
# That of `beam_step`: the order of beams is seldom decided by an interval.
STEPPING = EXACT.name


def find_normalizer(name: str) -> Normalizer:
    """The normalizer called `name`; InvalidRequest lists all of them."""
    try:
        return NORMALIZERS[name]
    except KeyError:
        raise InvalidRequest("normalizer", name, ", ".join(NORMALIZERS)) from None


def default_normalizer(index: Index) -> str:
    """Name of the normalizer of `score` where a request names none."""
    return (CERTIFIED if CERTIFIED.name in index.heads else EXACT).name
