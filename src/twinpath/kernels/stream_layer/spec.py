"""How the four products of a layer are cut into programs that all fit the card at once."""

from __future__ import annotations

from dataclasses import dataclass

#: Columns of K that one stage holds: a line of 128 bytes.
_STAGE_COLUMNS = 64
#: Weight rows that the tensor cores take at a time.
_MOST_TILE = 256
#: Rows that a launch takes.
ROW_SIZES = (32, 64, 128)
#: Sums of squares of a row are read by four threads, four at a time.
_PARTS_GRAIN = 16


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Widths of a layer: of the residual, of all query heads, of the MLP, and of q, k and v together."""

    hidden: int
    heads: int
    inner: int
    qkv: int
    norm_eps: float
    gelu: bool = False


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Weight rows of one program's tile: of o and down, of gates and ups together, of q, k and v."""

    residual: int
    gates: int
    qkv: int

    def num_programs(self, shape: LayerShape) -> int:
        """An even number: clusters have two."""
        halves = 2 * shape.hidden // self.residual, 2 * shape.qkv // self.qkv
        num = max(*halves, 2 * shape.inner // self.gates)
        return num + num % 2

    def num_parts(self, shape: LayerShape) -> int:
        """Sums of squares of one row."""
        return 2 * shape.hidden // self.residual


def choose_cut(shape: LayerShape, num_programs: int) -> LayerCut | None:
    """The smallest tiles of which `num_programs` take all at once; None: there are none that come out even."""
    if any(width % (2 * _STAGE_COLUMNS) for width in (shape.heads, shape.hidden, shape.inner)):
        return None
    residual = _smallest(shape.hidden, num_programs // 2, 16, _MOST_TILE)
    gates = _smallest(shape.inner, num_programs // 2 * 2, 8, _MOST_TILE // 2)
    qkv = _smallest(shape.qkv, num_programs // 2, 16, _MOST_TILE)
    if residual is None or gates is None or qkv is None:
        return None
    cut = LayerCut(residual, 2 * gates, qkv)
    return None if cut.num_parts(shape) % _PARTS_GRAIN else cut


def _smallest(outputs: int, most_tiles: int, grain: int, most: int) -> int | None:
    """Rows of a tile: a multiple of `grain` that divides `outputs` into `most_tiles` at most."""
    return next((t for t in range(grain, most + 1, grain) if outputs % t == 0 and outputs // t <= most_tiles), None)
