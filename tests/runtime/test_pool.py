"""Result arrays are recycled, and never while somebody can see them."""

import threading

import numpy as np

import retrograde as rg
from retrograde.runtime.pool import LARGE, Results

F64 = np.dtype(np.float64)
N = LARGE // 8


def test_a_dropped_array_is_handed_out_again():
    pool = Results()
    a = pool.empty((N,), F64)
    address = a.ctypes.data
    del a
    assert pool.empty((N,), F64).ctypes.data == address


def test_an_array_in_use_is_not_handed_out():
    pool = Results()
    held = [pool.empty((N,), F64) for _ in range(5)]
    assert len({a.ctypes.data for a in held}) == 5
    view = held[4][::2]
    lent = memoryview(held[3])
    held.clear()
    again = [pool.empty((N,), F64) for _ in range(3)]
    assert not any(np.shares_memory(a, view) for a in again)
    assert not any(np.shares_memory(a, np.asarray(lent)) for a in again)


def test_other_sizes_dtypes_and_changed_arrays_do_not_fit():
    pool = Results()
    address = pool.empty((N,), F64).ctypes.data
    assert pool.empty((N // 2, 2), F64).ctypes.data != address
    frozen = pool.empty((N,), F64)
    frozen.flags.writeable = False
    del frozen
    assert pool.empty((N,), F64).flags.writeable
    shaped = pool.empty((N,), F64)
    shaped.shape = (N // 2, 2)
    del shaped
    assert pool.empty((N,), F64).shape == (N,)


def test_results_of_calls_do_not_change_each_other():
    f = rg.compile(lambda x, k: (x * k, (x + k)[1:]))
    x = np.arange(float(N))
    kept = [f(x, float(k)) for k in range(6)]
    dropped = [f(x, 10.0 + k)[0][0] for k in range(6)]
    for k, (a, b) in enumerate(kept):
        np.testing.assert_array_equal(a, x * k)
        np.testing.assert_array_equal(b, (x + k)[1:])
    assert dropped == [0.0] * 6


def test_threads_get_arrays_of_their_own():
    f = rg.compile(lambda x: x * 2.0)
    f(np.ones(N))
    wrong = []

    def work(k):
        x = np.full(N, float(k))
        for _ in range(50):
            if not np.all(f(x) == 2.0 * k):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
