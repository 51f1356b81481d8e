import pytest

from headrace_core.scheduler.blocks import BlockPool


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
    assert repr(pool) == "<BlockPool used=1/4 cached=0 block_size=16>"


def known(pool: BlockPool, count: int) -> tuple[int, ...]:
    """Blocks with a known content, given back."""
    blocks = pool.allocate(count)
    assert blocks is not None
    for block in blocks:
        pool.keep(block)
    pool.release(blocks)
    return blocks


def test_a_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.share(blocks[:1])
    assert [pool.holders(block) for block in blocks] == [2, 1]
    pool.release(blocks)
    assert (pool.used, pool.holders(blocks[0])) == (1, 1)
    pool.release(blocks[:1])
    assert pool.used == 0


def test_empty_blocks_go_first_then_the_tail_of_what_was_given_back_longest_ago() -> None:
    pool = BlockPool(8, 16)
    first, second = known(pool, 3), known(pool, 3)
    reused: list[int] = []
    pool.on_reuse = reused.append
    assert (pool.free, pool.cached) == (7, 6)
    assert pool.allocate(1) == (7,), "the only one without content"
    assert pool.allocate(6) == (*reversed(first), *reversed(second))
    assert tuple(reused) == (*reversed(first), *reversed(second))


def test_a_hit_makes_a_kept_block_the_newest() -> None:
    pool = BlockPool(4, 16)
    blocks = known(pool, 3)
    pool.share(blocks[2:])
    assert (pool.used, pool.cached) == (1, 2)
    pool.release(blocks[2:])
    assert pool.kept_blocks() == (blocks[1], blocks[0], blocks[2])


@pytest.mark.parametrize("free", range(8))
def test_an_allocation_that_fails_at_the_nth_block_changes_nothing(free: int) -> None:
    """Blocks taken before the one that was missing were not given back, or cached content was lost for nothing."""
    pool = BlockPool(8, 16)
    known(pool, 4)
    pool.allocate(7 - free)
    pool.on_reuse = lambda block: pytest.fail(f"block {block} lost its content")
    before = (pool.free, pool.empty_blocks(), pool.kept_blocks())
    assert pool.allocate(free + 1) is None
    assert (pool.free, pool.empty_blocks(), pool.kept_blocks()) == before


def test_a_forgotten_block_cannot_be_shared_again() -> None:
    pool = BlockPool(4, 16)
    blocks = known(pool, 2)
    pool.forget(blocks[0])
    assert (pool.free, pool.cached, pool.is_known(blocks[0])) == (3, 1, False)
    with pytest.raises(ValueError, match="without content"):
        pool.share(blocks)
    assert (pool.used, pool.cached) == (0, 1), "none was taken"


@pytest.mark.parametrize("wrong", [(0,), (3,), (1, 1), (99,)])
def test_a_wrong_share_changes_nothing(wrong: tuple[int, ...]) -> None:
    pool = BlockPool(5, 16)
    pool.allocate(2)
    with pytest.raises(ValueError, match="without content"):
        pool.share((2, *wrong))
    assert pool.holders(2) == 1


def test_only_a_held_block_has_a_content() -> None:
    with pytest.raises(ValueError, match="not held"):
        BlockPool(5, 16).keep(1)
