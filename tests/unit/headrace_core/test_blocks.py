import pytest

from headrace_core.blocks import BlockPool


def test_block_zero_is_never_handed_out() -> None:
    pool = BlockPool(4, 16)
    assert pool.allocate(3) == (1, 2, 3)
    assert (pool.total, pool.free, pool.used) == (3, 0, 3)
    assert not pool.is_taken(0)


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(2)
    assert pool.allocate(2) is None
    assert pool.free == 1
    assert pool.allocate(0) == ()
    with pytest.raises(ValueError, match="-1"):
        pool.allocate(-1)


def test_released_blocks_come_back_in_the_same_order() -> None:
    pool = BlockPool(9, 16)
    first = pool.allocate(3)
    assert first is not None
    pool.release(first)
    assert pool.allocate(3) == first


@pytest.mark.parametrize("wrong", [(0,), (3,), (1, 1), (99,), (-1,)])
def test_a_wrong_release_changes_nothing(wrong: tuple[int, ...]) -> None:
    pool = BlockPool(5, 16)
    pool.allocate(2)
    with pytest.raises(ValueError, match="not held"):
        pool.release((2, *wrong))
    assert pool.used == 2


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for(positions: int, blocks: int) -> None:
    assert BlockPool(5, 16).blocks_for(positions) == blocks


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (0, 1), (5, 0)])
def test_impossible_pools(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(num_blocks, block_size)


def test_repr() -> None:
    pool = BlockPool(5, 16)
    pool.allocate(1)
    assert repr(pool) == "<BlockPool used=1/4 block_size=16>"
