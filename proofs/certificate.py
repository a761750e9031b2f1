"""Gappa's certificates, checked by Coq with Flocq: Debian's coq, libcoq-flocq and libcoq-gappa.

Gappa writes each proof as a file for Coq, where the equalities that it was given as hints are
assumptions; they are proven here. Its library for Coq 1.5 has no theorem of rounding to zero below
the normal numbers, so that scripts of tensor cores, which cut off, cannot be checked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from enum import Enum
from pathlib import Path

from proofs.theorem import OPTIONS, ROUNDINGS, gappa

LIBRARY = "Require Import Gappa.Gappa_library.\n"
# Equalities of real numbers, in whose denominators stand constants, and what hints say is not 0.
EQUALITIES = """Require Import Reals.
From Flocq Require Import Core.
Require Import Gappa.Gappa_library.
Ltac nonzero := first
  [ assumption
  | apply IZR_neq; discriminate
  | unfold float2R; apply F2R_neq_0; discriminate
  | match goal with |- (?a + (?b - ?a) <> 0)%R => replace (a + (b - a))%R with b by ring end;
    nonzero
  | apply Rmult_integral_contrapositive_currified; nonzero ].
Ltac equality := intros; unfold Float1; first [ ring | field; repeat split; nonzero ].
"""
ASSUMPTION = re.compile(r"^Hypothesis (.*)$", re.MULTILINE)
LACKING = "UNKNOWN_float_absolute_wide_zr"


class Checked(Enum):
    """Coq's verdict on a certificate."""

    YES = "checked"
    NO = "NOT CHECKED"
    CUT = "cuts off"  # beyond the library


def coq() -> str | None:
    """The compiler, if it is installed."""
    return shutil.which("coqc")


def certificate(script: str) -> str:
    """A proof of a script as a file for Coq, without assumptions."""
    done = subprocess.run(
        [gappa() or "gappa", "-Bcoq", *OPTIONS],
        input=ROUNDINGS + script, capture_output=True, text=True, check=True,
    )  # fmt: skip
    proof = done.stdout.replace(LIBRARY, EQUALITIES)
    return ASSUMPTION.sub(r"Lemma \1\nProof. equality. Qed.", proof)


def checked(proof: str) -> Checked:
    """Have Coq check a certificate."""
    if LACKING in proof:
        return Checked.CUT
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "proof.v").write_text(proof, encoding="ascii")
        command = [coq() or "coqc", "-q", "proof.v"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Checked.NO if done.returncode else Checked.YES
