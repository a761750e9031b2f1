"""Coq accepts Gappa's certificates, hints and all, and refuses one that proves something else."""

from __future__ import annotations

import pytest

from proofs.certificate import Checked, certificate, checked, coq
from proofs.route import codes, margin
from proofs.theorem import gappa

pytestmark = pytest.mark.skipif(
    gappa() is None or coq() is None, reason="apt-get install gappa coq libcoq-flocq libcoq-gappa"
)


def test_a_certificate_is_checked() -> None:
    script = next(check for check in margin(2.0**-20) if isinstance(check, str))
    proof = certificate(script)
    assert checked(proof) is Checked.YES
    assert checked(proof.replace("844424980463617", "844424980463000")) is Checked.NO


def test_hints_are_proven_instead_of_assumed() -> None:
    script = next(check for check in codes(126.99999) if isinstance(check, str))
    proof = certificate(script)
    assert "Hypothesis" not in proof
    assert proof.count("equality. Qed.") == 2
    assert checked(proof) is Checked.YES
    assert checked(proof.replace("equality. Qed.", "ring. Qed.")) is Checked.NO


def test_rounding_to_zero_is_beyond_the_library() -> None:
    cut = "@t = float<11,-1000,zr>; x = f(x_); { x in [1, 2] -> |x - t(x)| <= 1b-9 }"
    assert checked(certificate(cut)) is Checked.CUT
