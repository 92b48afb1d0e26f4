"""Allocates with the fixture's library, given as argument, and says which frames Python itself sees there.

Prints a line when it has opened the library, waits for one, and prints the frames by the sizes of the buffers.
Then it does so once more for each of some cells, one after the other, with the address of its code. With a second
argument it waits for another line after the first allocation, and ends before the cells.
"""

import ctypes
import json
import sys
import threading

library = ctypes.CDLL(sys.argv[1])
library.fixture_run.restype = ctypes.c_char_p
said = {}


def frames():
    """Those of the caller, innermost first."""
    list, frame = [], sys._getframe(1)
    while frame:
        code = frame.f_code  # from 3.11 on it has the whole name
        list.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return list


def allocate(size):
    # In one line, which both then are in.
    said[size] = frames(), library.fixture_run(b"alloc 64 0 0 0 %d 64 4096" % size).decode()


def recursive(depth, size):
    if depth == 0:
        allocate(size)
    else:
        recursive(depth - 1, size)


def generator(size):
    yield 1
    yield allocate(size)


class Model:
    def __init__(self, size):
        self.forward(size)

    def forward(self, size):
        [allocate(size + n) for n in range(2)]

    @property
    def größe(self):
        return (
            allocate(7)
        )  # fmt: skip


# Further apart than a byte tells, down and up.
FAR = "for _ in range(2):\n" + "\n" * 300 + "    n = 11\n" + "\n" * 300 + "    allocate(n)\n"

CELLS = 4


def main():
    library.fixture_run(b"device 0 3")
    print("opened", flush=True)
    sys.stdin.readline()
    allocate(1)
    ends = len(sys.argv) > 2
    if ends:
        sys.stdin.readline()
    recursive(5, 2)
    list(generator(3))
    (lambda: allocate(4))()
    Model(5)
    Model.größe.fget(None)
    max([8], key=allocate)  # called back by C
    # Code is read a moment later: it has to be there.
    kept = [compile(text, "/tmp/模型.py", "exec") for text in ("\n\nallocate(9)", FAR)]
    for code in kept:
        exec(code)
    thread = threading.Thread(target=allocate, args=[10])
    thread.start()
    thread.join()
    print(json.dumps(said), flush=True)
    if ends:
        return
    # Cells of a notebook: each is freed when it has run, and the next one lies where it lay.
    for n in range(CELLS):
        sys.stdin.readline()
        said.clear()
        cell = compile("\n" * n + "allocate(%d)" % (20 + n), "/tmp/cell%d.py" % n, "exec")
        exec(cell)
        print(json.dumps({"address": id(cell), "said": said}), flush=True)
        del cell
    sys.stdin.readline()


main()
