"""Aligned memory and its pool."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

from tensorcom.buffers import ALIGNMENT, POOL_MIN_BYTES, BufferPool, aligned_array

BIG = 4 * POOL_MIN_BYTES


def address(view) -> int:
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, POOL_MIN_BYTES, BIG + 1])
def test_alignment_size_and_writability(size) -> None:
    array = aligned_array(size)
    assert (array.nbytes, array.dtype) == (size, np.uint8)
    view = BufferPool().take(size)
    assert view.nbytes == size
    assert not view.readonly
    if size:
        assert array.ctypes.data % ALIGNMENT == 0
        assert address(view) % ALIGNMENT == 0


@pytest.mark.parametrize("size", [0, 5, BIG])
def test_copies_are_equal_and_their_own(size) -> None:
    data = bytearray(os.urandom(size))
    copy = BufferPool().copy(memoryview(data))
    assert bytes(copy) == bytes(data)
    data[:] = bytes(size)
    assert size == 0 or any(copy)


def test_a_buffer_comes_back_when_its_view_is_gone() -> None:
    pool = BufferPool()
    view = pool.take(BIG)
    where = address(view)
    del view
    assert address(pool.take(BIG - 10)) == where  # the same pages, rounded up


@pytest.mark.parametrize(
    "derive",
    [
        lambda view: np.frombuffer(view, "f4"),
        lambda view: np.frombuffer(view, "f4").reshape(2, -1)[1:, ::3],
        lambda view: np.frombuffer(view, "f4").view("i4").T,
        lambda view: np.ndarray((4,), "f4", view),
        lambda view: memoryview(view)[7:],
        lambda view: memoryview(np.frombuffer(view, np.uint8)[5:]),
        lambda view: np.asarray(memoryview(view).cast("I")),
    ],
)
def test_no_buffer_comes_back_while_anything_looks_at_it(derive) -> None:
    pool = BufferPool()
    view = pool.take(BIG)
    where = address(view)
    last = derive(view)
    del view
    gc.collect()
    others = [pool.take(BIG) for _ in range(3)]
    assert where not in [address(other) for other in others]
    del last
    assert address(pool.take(BIG)) == where


def test_unused_memory_is_bounded() -> None:
    pool = BufferPool(max_free_bytes=3 * BIG)
    views = [pool.take(BIG) for _ in range(10)]
    del views
    pool.take(1 << 20)
    assert 0 < pool._free_bytes <= 3 * BIG
    pool.clear()
    assert pool._free_bytes == 0


def test_of_unused_buffers_the_oldest_go_first() -> None:
    pool = BufferPool(max_free_bytes=BIG)
    first, second = pool.take(BIG), pool.take(BIG)
    where = address(second)
    del first
    del second
    assert address(pool.take(BIG)) == where


def test_leases_do_not_pile_up() -> None:
    pool = BufferPool()
    for _ in range(1000):
        pool.take(BIG)
    assert len(pool._leases) <= 2


def test_threads_never_share_a_buffer() -> None:
    pool = BufferPool()
    wrong = []

    def use(mark: int) -> None:
        for _ in range(300):
            array = np.frombuffer(pool.take(BIG), np.uint8)
            array[:: BIG // 8] = mark
            if not (array[:: BIG // 8] == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_can_use_a_pool_whose_lock_was_held() -> None:
    pool = BufferPool()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(len(pool.take(BIG)) != BIG)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
