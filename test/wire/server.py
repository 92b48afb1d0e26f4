#!/usr/bin/env python3
"""An allocation server for tests, written from docs/protocol.md and nothing else.

It behaves as the original does, faults and all: one size of records, keys without a process, totals of circular
buffers that only ever add and subtract, short reads taken as whole, EPERM treated as death.

  server.py --socket PATH [--size 144] [--devices 256] [-q]
"""

import argparse
import os
import selectors
import signal
import socket
import struct
import sys
import time

# The fields behind those that all sizes share, in order.
ALLOCATED = ["dram", "l1", "l1_small", "trace"]
DETAIL = ["cb", "kernel"]
INFO = {72: "", 112: "QQ6I", 128: "QQ6I", 144: "QQ6I4I"}
HEAD = struct.Struct("<B3xiQB3xiQQ")
ALLOC, FREE, QUERY, RESPONSE, DUMP_REMAINING, INFO_QUERY, INFO_RESPONSE = range(1, 8)
CB_ALLOC, CB_FREE, KERNEL_LOAD, KERNEL_UNLOAD, DUMP_KERNELS = range(8, 13)
LAST = {72: DUMP_REMAINING, 112: INFO_RESPONSE, 128: DUMP_KERNELS, 144: DUMP_KERNELS}
TYPES = ["DRAM", "L1", "SYSTEM_MEMORY", "L1_SMALL", "TRACE"]
COUNTED = ["dram", "l1", "l1_small", "l1_small", "trace"]
WORD = 1 << 64


class Server:
    def __init__(self, args):
        self.size, self.devices, self.quiet = args.size, args.devices, args.quiet
        self.buffers, self.pieces = {}, {"cb": {}, "kernel": {}}
        self.totals = [dict.fromkeys(ALLOCATED + DETAIL, 0) for _ in range(self.devices)]

    def say(self, text):
        if not self.quiet:
            print(text, flush=True)

    def answer(self, kind, device):
        t = self.totals[device] if 0 <= device < self.devices else dict.fromkeys(ALLOCATED + DETAIL, 0)
        b = HEAD.pack(kind, device, 0, 0, os.getpid(), 0, time.time_ns())
        b += struct.pack("<4Q", *(t[name] for name in ALLOCATED))
        if self.size >= 128:
            b += struct.pack("<2Q", *(t[name] for name in DETAIL))
        return b + bytes(self.size - len(b))

    def record(self, b):
        """Book one record; what is answered, or nothing."""
        kind, device, size, memory, pid, key, _ = HEAD.unpack_from(b)
        if kind == QUERY:
            return self.answer(RESPONSE, device)
        if kind == INFO_QUERY:
            return self.answer(INFO_RESPONSE, device)
        if kind == DUMP_REMAINING:
            self.reap_exited()
            return self.say(f"Total tracked allocations: {len(self.buffers)}")
        if kind in (RESPONSE, INFO_RESPONSE, DUMP_KERNELS):
            return None
        if not 0 <= device < self.devices:
            return self.say(f"⚠️  Invalid device_id {device} - ignoring message")
        t = self.totals[device]
        if kind == ALLOC:
            if size == 0 or size > 100 << 30 or memory > 4:
                return self.say(f"⚠️  Invalid size {size} or buffer_type {memory}")
            if (device, key) in self.buffers:
                self.buffers[device, key][3] += 1
                return self.say(f"✓ [PID {pid}] repeated 0x{key:x}")
            self.buffers[device, key] = [pid, memory, size, 1]
            t[COUNTED[memory]] += size
            return self.say(f"✓ [PID {pid}] Allocated {size} bytes of {TYPES[memory]} on device {device} (buffer_id=0x{key:x})")
        if kind == FREE:
            if (device, key) not in self.buffers:
                return self.say(f"⚠ [PID {pid}] Deallocation for unknown buffer 0x{key:x} on device {device}")
            self.buffers[device, key][3] -= 1
            if self.buffers[device, key][3] == 0:
                self.drop(device, key)
            return self.say(f"✗ [PID {pid}] Freed buffer 0x{key:x} on device {device}")
        what = "cb" if kind in (CB_ALLOC, CB_FREE) else "kernel"
        if kind in (CB_ALLOC, KERNEL_LOAD):
            self.pieces[what][device, key] = (pid, size)
            t[what] = (t[what] + size) % WORD
        elif kind == CB_FREE:
            self.pieces[what].pop((device, key), None)
            t[what] = (t[what] - size) % WORD
        elif (device, key) in self.pieces[what]:
            t[what] = (t[what] - self.pieces[what].pop((device, key))[1]) % WORD
        return self.say(f"{what} {kind} on {device}: {size} (total {t[what]})")

    def drop(self, device, key):
        _, memory, size, _ = self.buffers.pop((device, key))
        self.totals[device][COUNTED[memory]] -= size

    def reap_exited(self):
        dead = {}

        def is_dead(pid):
            if pid not in dead:
                try:
                    os.kill(pid, 0)
                    dead[pid] = False
                except OSError:
                    dead[pid] = True
            return dead[pid]

        for (device, key), one in list(self.buffers.items()):
            if is_dead(one[0]):
                self.drop(device, key)
        for what, all in self.pieces.items():
            for (device, key), (pid, size) in list(all.items()):
                if is_dead(pid):
                    del all[device, key]
                    self.totals[device][what] = (self.totals[device][what] - size) % WORD


class Connection:
    def __init__(self, server, conn):
        self.server, self.conn, self.left, self.bad = server, conn, b"", 0

    def ready(self):
        """Read once and book it; false when the connection is over."""
        size = self.server.size
        b = self.left + self.conn.recv(size - len(self.left))
        if len(b) == len(self.left):
            return False
        self.left = b""
        if not ALLOC <= b[0] <= LAST[size]:
            self.left, self.bad = b[1:], self.bad + 1
            return self.bad < 10
        self.bad = 0
        answer = self.server.record(b + bytes(size - len(b)))  # a short read is taken as whole
        if answer:
            self.conn.sendall(answer)
        return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--socket", required=True)
    p.add_argument("--size", type=int, default=144, choices=LAST)
    p.add_argument("--devices", type=int, default=0)
    p.add_argument("-q", "--quiet", action="store_true")
    args = p.parse_args()
    args.devices = args.devices or (256 if args.size == 144 else 8)
    server = Server(args)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(args.socket):
        os.unlink(args.socket)
    listener.bind(args.socket)
    listener.listen(128)
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, lambda *_: sys.exit(0))
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    print("ready", flush=True)
    next_reap = time.monotonic() + 3
    while True:
        for event, _ in selector.select(max(0, next_reap - time.monotonic())):
            if event.data is None:
                conn, _ = listener.accept()
                selector.register(conn, selectors.EVENT_READ, Connection(server, conn))
                continue
            try:
                ok = event.data.ready()
            except OSError:
                ok = False
            if not ok:
                selector.unregister(event.fileobj)
                event.fileobj.close()
        if time.monotonic() >= next_reap:
            server.reap_exited()
            next_reap = time.monotonic() + 3


if __name__ == "__main__":
    main()
