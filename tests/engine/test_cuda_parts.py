"""Parts of the CUDA engine that need no card: what the host keeps and sends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from twinpath.engine.cuda.residuals import ResidualStore
from twinpath.engine.cuda.slots import SlotTables
from twinpath.errors import EngineError
from twinpath.kernels.sampler.spec import FLAGS, HAS_PENALTIES, IS_GREEDY, SEED, TOP_K, TOP_P
from twinpath.types import Float32s, SamplingParams

CPU = torch.device("cpu")


def array() -> Float32s:
    return np.empty((3, 4), np.float32)


def test_a_chunk_finds_its_residual_again() -> None:
    store = ResidualStore(2, 8, 4, CPU)
    first, second = array(), array()
    store.begin(first).fill_(1.0)
    store.begin(second).fill_(2.0)
    assert float(store.resume(first)[0, 0]) == 1.0
    assert float(store.resume(second)[0, 0]) == 2.0
    store.begin(first).fill_(3.0)  # after an interrupt it begins again, in the same place
    assert float(store.resume(first)[0, 0]) == 3.0
    assert float(store.resume(second)[0, 0]) == 2.0


def test_a_third_chunk_takes_the_place_of_the_dead_or_the_oldest() -> None:
    store = ResidualStore(2, 8, 4, CPU)
    first, second, third, fourth = array(), array(), array(), array()
    store.begin(first)
    store.begin(second)
    del second
    store.begin(third)
    store.resume(first)
    store.begin(fourth)
    store.resume(first)
    with pytest.raises(EngineError, match="begin at layer 0"):
        store.resume(third)


def test_only_changed_pages_are_sent() -> None:
    tables = SlotTables(3, 50, 64, 16, CPU)

    def apply(slot: int, *pages: int) -> int:
        pairs = tables.page_updates(slot, np.array(pages, np.int32))
        if pairs is None:
            return 0
        tables.words[torch.from_numpy(pairs[:, 0]).long()] = torch.from_numpy(pairs[:, 1])
        return len(pairs)

    assert apply(1, 7, 8) == 2
    assert apply(1, 7, 8, 9) == 1
    assert apply(1, 7, 8, 9) == 0
    assert apply(2, 9) == 1
    assert apply(1, 5) == 1
    assert tables.tables[1, :3].tolist() == [5, 8, 9]
    assert tables.tables[2, 0] == 9
    assert not tables.tables[0].any() and not tables.history.any()


def test_settings_land_in_their_slot() -> None:
    tables = SlotTables(3, 50, 64, 16, CPU)
    params = SamplingParams(max_tokens=1, temperature=0.0, seed=2**64 - 5, top_k=9, top_p=0.3, presence_penalty=1.0)
    pairs = tables.setting_updates(2, params, 11)
    tables.words[torch.from_numpy(pairs[:, 0]).long()] = torch.from_numpy(pairs[:, 1])
    ints, floats = tables.state.ints, tables.state.floats
    assert int(ints[2, SEED]) == -5 and int(ints[2, TOP_K]) == 9
    assert int(ints[2, FLAGS]) == HAS_PENALTIES | IS_GREEDY
    assert float(floats[2, TOP_P]) == 0.3
    assert not ints[:2].any() and not floats[:2].any() and not tables.tables.any()
