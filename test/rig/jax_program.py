#!/usr/bin/env python3
"""A JAX program, whose plugin has the runtime linked in without symbols.

It holds an array on each device, and runs a jitted addition. Messages: start (pid), open, held (chips: the bytes of DRAM in use of each
device, as JAX reports them); then a line on stdin ends it.
"""

import os
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402


def run(protocol):
    import jax
    import jax.numpy as jnp

    devices = jax.devices()
    protocol.emit("open", chips=list(range(len(devices))))
    add = jax.jit(lambda a: a + a)
    held = [add(jax.device_put(jnp.ones((512, 512), jnp.float32), device)).block_until_ready() for device in devices]
    protocol.emit("held", reserved=[device.memory_stats()["bytes_in_use"] for device in devices])
    protocol.command()
    del held


def main():
    common.arguments(__doc__).parse_args()
    protocol = common.Protocol()
    protocol.emit("start", pid=os.getpid())
    run(protocol)
    protocol.emit("closed")


if __name__ == "__main__":
    main()
