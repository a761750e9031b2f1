"""A Dockerfile, read: stages of instructions."""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows: (instruction, its text) in order, those of an earlier stage that
    it is FROM before its own.
    """

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]

    def one(self, instruction: str) -> str:
        [text] = self.all(instruction)
        return text

    @property
    def user(self) -> str:
        return self.all("USER")[-1]

    def words(self, instruction: str) -> list[str]:
        """An instruction in exec form."""
        return [str(word) for word in json.loads(self.one(instruction))]

    @property
    def environment(self) -> dict[str, str]:
        return assignments(" ".join(self.all("ENV")))

    @property
    def health(self) -> list[str]:
        return [str(word) for word in json.loads(self.one("HEALTHCHECK").partition("CMD ")[2])]


def assignments(text: str) -> dict[str, str]:
    """`A=1 B="2 3"` of ENV, LABEL and ARG."""
    pairs = (word.partition("=") for word in shlex.split(text))
    return {name: value for name, _, value in pairs}


def read(path: Path = REPOSITORY / "Dockerfile") -> dict[str, Stage]:
    """The stages of a Dockerfile; the ARG before the first FROM stand in for `${NAME}` in FROM."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    stages: dict[str, Stage] = {}
    shared: dict[str, str] = {}
    for name, text in (line.split(None, 1) for line in lines if line):
        if name == "FROM":
            base, _, stage = Template(text).substitute(shared).partition(" AS ")
            found = Stage(stage, base)
            if parent := stages.get(base):
                found = Stage(stage, parent.base, list(parent.steps))
            stages[stage] = found
        elif stages:
            found.steps.append((name, text))
        else:
            shared |= assignments(text)
    return stages
