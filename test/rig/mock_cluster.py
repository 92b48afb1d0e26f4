#!/usr/bin/env python3
"""Cluster descriptors for TT_METAL_MOCK_CLUSTER_DESC_PATH.

With such a descriptor the runtime mocks every call to a device, while its allocator, its program
compiler and its launch path stay the real ones.

usage: mock_cluster.py {n150|n300|t3k|galaxy|p150} [FIRST_CHIP_ID] > cluster.yaml
"""

import json
import sys

# board type -> (first board id of that type, Tensix harvest mask)
BOARD_TYPES = {
    "n150": (72059269368820857, 64),
    "n300": (72058994491928619, 65),
    "p150": (4402341478400, 192),
    "ubb": (72061240465162240, 0),
}

GALAXY_TRAYS = [0xC1, 0x41, 0x01, 0x81]  # the first PCI bus of each tray of eight chips

# The runtime names its shared memory after the chips' unique ids, so whoever starts a run that must
# not share books with another one passes a first id of its own.
DEFAULT_FIRST_CHIP_ID = 1000


def pairs(a, b, ca, cb, n=2):
    """n ethernet links between chips a and b, from channels ca and cb up."""
    return [(a, ca + i, b, cb + i) for i in range(n)]


def galaxy_links():
    """Four trays of 2x4 chips (chip = 8 * tray + location), wired to an 8x4 mesh."""
    links = []
    for tray in range(4):
        for row in (0, 4):
            links += [link for x in range(3) for link in pairs(8 * tray + row + x, 8 * tray + row + x + 1, 8, 4, 4)]
        links += [link for x in range(4) for link in pairs(8 * tray + x, 8 * tray + x + 4, 12, 0, 4)]
    for a, b in ((0, 1), (2, 3)):
        links += [link for x in (3, 7) for link in pairs(8 * a + x, 8 * b + x, 8, 8, 4)]
    for a, b in ((0, 2), (1, 3)):
        links += [link for x in (4, 5, 6, 7) for link in pairs(8 * a + x, 8 * b + x, 12, 12, 4)]
    return links


def t3k_links():
    """Four n300 boards: each joins a left chip to its right one, the boards form a 2x4 mesh."""
    links = [link for a in range(4) for link in pairs(a, a + 4, 8, 0)]
    for a, b, channel in ((0, 2, 6), (0, 1, 14), (1, 3, 6), (2, 3, 14), (4, 5, 6), (6, 7, 6)):
        links += pairs(a, b, channel, channel)
    return links


T3K_CHIPS = {0: [1, 0], 1: [1, 1], 2: [2, 0], 3: [2, 1], 4: [0, 0], 5: [0, 1], 6: [3, 0], 7: [3, 1]}

# cluster -> (arch, board type, {chip: [x, y]}, boards as chip lists with the PCIe chip first, links)
CLUSTERS = {
    "n150": ("wormhole_b0", "n150", {0: [0, 0]}, [[0]], []),
    "n300": ("wormhole_b0", "n300", {0: [0, 0], 1: [1, 0]}, [[0, 1]], pairs(0, 1, 8, 0)),
    "t3k": ("wormhole_b0", "n300", T3K_CHIPS, [[0, 4], [1, 5], [2, 6], [3, 7]], t3k_links()),
    "galaxy": ("wormhole_b0", "ubb", {c: None for c in range(32)}, [list(range(32))], galaxy_links()),
    "p150": ("blackhole", "p150", {0: [0, 0]}, [[0]], []),
}

# cluster -> the shape of the mesh that spans all of its chips
MESH_SHAPES = {"n150": (1, 1), "n300": (1, 2), "t3k": (2, 4), "galaxy": (8, 4), "p150": (1, 1)}


def chip_ids(name, first=DEFAULT_FIRST_CHIP_ID):
    """The unique id of every chip of a cluster."""
    return {chip: first + chip for chip in CLUSTERS[name][2]}


def descriptor(name, first_chip_id=DEFAULT_FIRST_CHIP_ID):
    arch, board_type, chips, boards, links = CLUSTERS[name]
    wormhole = arch == "wormhole_b0"
    ubb = board_type == "ubb"
    board_id, harvest = BOARD_TYPES[board_type]
    harvesting = {
        "noc_translation": True,
        "harvest_mask": harvest,
        "dram_harvesting_mask": 0,
        "eth_harvesting_mask": 0 if wormhole else 288,
        "pcie_harvesting_mask": 0 if wormhole else 2,
    }
    return {
        "arch": {c: arch for c in chips},
        "chips": {c: [*xy, 0, 0] for c, xy in chips.items() if xy} if wormhole else {},
        "chip_unique_ids": chip_ids(name, first_chip_id),
        "ethernet_connections": [[{"chip": a, "chan": ca}, {"chip": b, "chan": cb}] for a, ca, b, cb in links],
        "ethernet_connections_to_remote_devices": [],
        "chips_with_mmio": [{c: i} for i, c in enumerate(boards[0] if ubb else [b[0] for b in boards])],
        "chip_to_bus_id": {c: f"0x{GALAXY_TRAYS[c // 8] + c % 8:02x}" for c in chips} if ubb else {},
        "harvesting": {c: harvesting for c in chips},
        # 0.66.0 reads this instead of boards. Of "ubb" it would expect the links of a real galaxy.
        **({} if ubb else {"chip_to_boardtype": {c: board_type for c in chips}}),
        "boards": [
            [{"board_id": board_id + i}, {"board_type": board_type}, {"chips": b}] for i, b in enumerate(boards)
        ],
    }


def emit(value, indent=0):
    """YAML in the shape the runtime's reader expects: hexadecimal strings quoted, plain lists inline."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(f"\n{pad}{k}:" + emit(v, indent + 1) for k, v in value.items())
    if isinstance(value, str) and value.startswith("0x"):
        return f' "{value}"'
    if isinstance(value, list) and value:
        if not isinstance(value[0], (list, dict)):
            return " " + json.dumps(value)
        out = ""
        for item in value:
            body = emit(item, indent + 1)
            out += f"\n{pad}-" + (body if isinstance(item, list) else " " + body.lstrip())
        return out
    return " " + json.dumps(value)


def render(name, first_chip_id=DEFAULT_FIRST_CHIP_ID):
    return emit(descriptor(name, first_chip_id)).lstrip("\n") + "\n"


def main(argv):
    if len(argv) not in (2, 3) or argv[1] not in CLUSTERS:
        sys.stderr.write(f"usage: {argv[0]} {{{'|'.join(CLUSTERS)}}} [FIRST_CHIP_ID]\n")
        return 2
    sys.stdout.write(render(argv[1], *(int(a, 0) for a in argv[2:])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
