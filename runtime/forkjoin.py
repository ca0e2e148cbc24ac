"""The native code of the thread pool; see Note [threads] in `threads`."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from .threads import (
    ACTIVE,
    BUSY,
    CHUNKS,
    CONTEXT,
    DONE,
    FAILED,
    FUNCTION,
    LIMIT,
    MASK,
    MUTEX,
    NEXT,
    NONE,
    POOL,
    SEATS,
    STARTED,
    WAKE,
    get_num_threads,
    libc,
    reset,
)

PARALLEL = "retrograde_parallel"
I32, I64, BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
VOID = ir.VoidType()
# A part has Numba's calling convention: it returns a status, and takes the places for
# its result (a code, 0 where nothing failed) and for an exception, then its context
# and the number of the chunk.
PART = ir.FunctionType(I32, [I64.as_pointer(), BYTES.as_pointer(), I64, I64])
ENTRY = ir.FunctionType(I64, [PART.as_pointer(), I64, I64])
RAISED = 1 << 30  # the code of a part that has raised; parts do not


@functools.cache
def register() -> None:
    """Bind `retrograde_parallel` for LLVM; cheap after the first time.

    Call it before code that uses it is compiled, or loaded from a cache.
    """
    get_num_threads()
    reset()
    library = libc()
    if library is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
    llvm.add_symbol(PARALLEL, _compile(library))
    memory = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
    for name in ("malloc", "free"):
        address = ctypes.cast(getattr(memory, name), ctypes.c_void_p).value
        llvm.add_symbol(f"retrograde_{name}", address)


def _compile(library: ctypes.CDLL | None) -> int:
    module = ir.Module("retrograde_threads")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module.triple = llvm.get_process_triple()
    entry = _Writer(module, library).parallel()
    target = llvm.Target.from_triple(module.triple).create_target_machine(
        opt=0, jit=True
    )
    parsed = llvm.parse_assembly(str(module))
    engine = llvm.create_mcjit_compiler(parsed, target)
    engine.finalize_object()
    for kept in (engine, POOL):  # workers may outlive the interpreter
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return int(engine.get_function_address(entry.name))


class _Writer:
    """Writes the functions of the pool."""

    def __init__(self, module: Any, library: ctypes.CDLL | None) -> None:
        self.module = module
        self.library = library
        self.b: Any = None

    # Words and calls --------------------------------------------------------------

    def at(self, word: int) -> Any:
        address = I64(ctypes.addressof(POOL) + 8 * word)
        return self.b.inttoptr(address, I64.as_pointer())

    def get(self, word: int) -> Any:
        return self.b.load_atomic(self.at(word), "seq_cst", 8)

    def put(self, word: int, value: Any) -> None:
        value = I64(value) if isinstance(value, int) else value
        self.b.store_atomic(value, self.at(word), "seq_cst", 8)

    def add(self, word: int, n: int) -> Any:
        """Add to a word; return what it was."""
        return self.b.atomic_rmw("add", self.at(word), I64(n), "seq_cst")

    def libc(self, name: str, *args: Any, result: Any = I32) -> Any:
        function = getattr(self.library, name)
        address = ctypes.cast(function, ctypes.c_void_p).value
        kind = ir.FunctionType(result, [a.type for a in args]).as_pointer()
        return self.b.call(self.b.inttoptr(I64(address), kind), args)

    def wait(self, condition: int) -> None:
        self.libc("pthread_cond_wait", self.at(condition), self.at(MUTEX))

    def lock(self) -> None:
        self.libc("pthread_mutex_lock", self.at(MUTEX))

    def unlock(self) -> None:
        self.libc("pthread_mutex_unlock", self.at(MUTEX))

    def function(self, kind: Any, name: str) -> Any:
        f = ir.Function(self.module, kind, name)
        self.b = ir.IRBuilder(f.append_basic_block())
        return f

    def loop(self) -> tuple[Any, Any]:
        """Open an endless loop; return its start and what follows it."""
        head = self.b.append_basic_block()
        after = self.b.append_basic_block()
        self.b.branch(head)
        self.b.position_at_end(head)
        return head, after

    def leave_unless(self, condition: Any, after: Any) -> None:
        inside = self.b.append_basic_block()
        self.b.cbranch(condition, inside, after)
        self.b.position_at_end(inside)

    # Chunks -----------------------------------------------------------------------

    def chunk(self, part: Any, context: Any, c: Any) -> Any:
        """Run a chunk and return its code."""
        b = self.b
        with b.goto_entry_block():
            code, raised = b.alloca(I64), b.alloca(BYTES)
        b.store(I64(0), code)
        status = b.call(part, [code, raised, context, c])
        good = b.icmp_signed("==", status, I32(0))
        return b.select(good, b.load(code), I64(RAISED))

    def run(self) -> Any:
        """Write `run()`: take chunks of the job until none is left."""
        f = self.function(ir.FunctionType(VOID, []), "run")
        f.linkage = "internal"
        b = self.b
        part = b.inttoptr(self.get(FUNCTION), PART.as_pointer())
        context, chunks = self.get(CONTEXT), self.get(CHUNKS)
        head, after = self.loop()
        c = self.add(NEXT, 1)
        self.leave_unless(b.icmp_signed("<", c, chunks), after)
        code = self.chunk(part, context, c)
        with b.if_then(b.icmp_signed("!=", code, I64(0)), likely=False):
            failure = b.or_(b.shl(c, I64(32)), code)
            b.atomic_rmw("min", self.at(FAILED), failure, "seq_cst")
            self.put(NEXT, chunks)
        b.branch(head)
        b.position_at_end(after)
        b.ret_void()
        return f

    def alone(self) -> Any:
        """Write `alone(part, context, chunks)`: run all chunks, in order."""
        f = self.function(ENTRY, "alone")
        f.linkage = "internal"
        part, context, chunks = f.args
        b = self.b
        start = b.block
        head, after = self.loop()
        c = b.phi(I64)
        c.add_incoming(I64(0), start)
        self.leave_unless(b.icmp_signed("<", c, chunks), after)
        code = self.chunk(part, context, c)
        with b.if_then(b.icmp_signed("!=", code, I64(0)), likely=False):
            b.ret(code)
        c.add_incoming(b.add(c, I64(1)), b.block)
        b.branch(head)
        b.position_at_end(after)
        b.ret(I64(0))
        return f

    # Threads ----------------------------------------------------------------------

    def worker(self, run: Any) -> Any:
        """Write what a worker does: wait for a seat, take chunks, again."""
        f = self.function(ir.FunctionType(BYTES, [BYTES]), "worker")
        f.linkage = "internal"
        b = self.b
        self.lock()
        head, after = self.loop()
        seated = b.append_basic_block()
        sleep = b.append_basic_block()
        b.cbranch(b.icmp_signed(">", self.get(SEATS), I64(0)), seated, sleep)
        b.position_at_end(sleep)
        self.wait(WAKE)
        b.branch(head)
        b.position_at_end(seated)
        self.add(SEATS, -1)
        self.add(ACTIVE, 1)
        self.unlock()
        b.call(run, [])
        self.lock()
        last = b.icmp_signed("==", self.add(ACTIVE, -1), I64(1))
        with b.if_then(last):
            self.libc("pthread_cond_signal", self.at(DONE))
        b.branch(head)
        b.position_at_end(after)
        b.unreachable()
        return f

    def hire(self, wanted: Any, worker: Any) -> None:
        """Start workers until there are enough, or no more can be had."""
        b = self.b
        with b.goto_entry_block():
            thread = b.alloca(BYTES)
            old = b.alloca(I64, 16)
        missing = b.icmp_signed("<", self.get(STARTED), wanted)
        with b.if_then(missing, likely=False):
            block, restore = I32(signal.SIG_BLOCK), I32(signal.SIG_SETMASK)
            self.libc("pthread_sigmask", block, self.at(MASK), old)
            head, after = self.loop()
            self.leave_unless(b.icmp_signed("<", self.get(STARTED), wanted), after)
            null = BYTES(None)
            failed = self.libc("pthread_create", thread, null, worker, null)
            self.leave_unless(b.icmp_signed("==", failed, I32(0)), after)
            self.libc("pthread_detach", b.load(thread))
            self.add(STARTED, 1)
            b.branch(head)
            b.position_at_end(after)
            nowhere = I64.as_pointer()(None)
            self.libc("pthread_sigmask", restore, old, nowhere)

    def parallel(self) -> Any:
        """Write `retrograde_parallel(part, context, chunks)`."""
        alone = self.alone()
        if self.library is None:
            alone.linkage = "external"
            return alone
        run = self.run()
        worker = self.worker(run)
        f = self.function(ENTRY, PARALLEL)
        b = self.b
        part, context, chunks = f.args
        serially = b.append_basic_block()
        limit = self.get(LIMIT)
        least = b.select(b.icmp_signed("<", limit, chunks), limit, chunks)
        self.leave_unless(b.icmp_signed(">", least, I64(1)), serially)
        taken = b.cmpxchg(self.at(BUSY), I64(0), I64(1), "seq_cst", "seq_cst")
        self.leave_unless(b.extract_value(taken, 1), serially)
        self.post(b.ptrtoint(part, I64), context, chunks, b.sub(least, I64(1)), worker)
        b.call(run, [])
        self.finish()
        b.position_at_end(serially)
        b.ret(b.call(alone, f.args))
        return f

    def post(
        self, part: Any, context: Any, chunks: Any, seats: Any, worker: Any
    ) -> None:
        """Post a job, and wake a worker for every seat."""
        b = self.b
        self.lock()
        self.hire(seats, worker)
        for word, value in (
            (FUNCTION, part),
            (CONTEXT, context),
            (CHUNKS, chunks),
            (NEXT, 0),
            (FAILED, NONE),
            (SEATS, seats),
        ):
            self.put(word, value)
        start = b.block
        head, after = self.loop()
        k = b.phi(I64)
        k.add_incoming(I64(0), start)
        self.leave_unless(b.icmp_signed("<", k, seats), after)
        self.libc("pthread_cond_signal", self.at(WAKE))
        k.add_incoming(b.add(k, I64(1)), b.block)
        b.branch(head)
        b.position_at_end(after)
        self.unlock()

    def finish(self) -> None:
        """Wait for the workers of the job, and return its code."""
        b = self.b
        self.lock()
        self.put(SEATS, 0)
        head, after = self.loop()
        self.leave_unless(b.icmp_signed(">", self.get(ACTIVE), I64(0)), after)
        self.wait(DONE)
        b.branch(head)
        b.position_at_end(after)
        self.unlock()
        failed = self.get(FAILED)
        self.put(BUSY, 0)
        good = b.icmp_signed("==", failed, I64(NONE))
        b.ret(b.select(good, I64(0), b.and_(failed, I64(0xFFFFFFFF))))
