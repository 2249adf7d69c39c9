"""Servers read from `nvidia-smi topo -m` and NCCL's XML: paths, own cards, and what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.floor.errors import LabError
from workbook.tools import topology
from workbook.tools.topology import by_pcie, level

CORPUS = Path(__file__).parents[1] / "corpus"
ALL = pytest.mark.parametrize("name", list(topology.BUNDLED))
WAYS = st.lists(st.sampled_from(["s1", "s2", "s3"]), max_size=3, unique=True)


@ALL
def test_every_bundled_server_has_symmetric_paths_and_a_card_for_each_gpu(name):
    server = topology.find(name)
    devices = (*server.gpus, *server.nics)
    for a, b in product(devices, devices):
        if (a, b) in server.told or not server.told or a == b:
            assert server.path(a, b) == server.path(b, a)
    for gpu in server.gpus:
        near = server.nearest(gpu)
        assert bool(near) == bool(server.nics)
        assert all(level(server.path(gpu, near[0])) <= level(server.path(gpu, nic)) for nic in server.nics)
    assert topology.BUNDLED[name][1] == server.source


@ALL
def test_where_a_file_is_from_stands_beside_it(name):
    folder = topology.__file__.replace("__init__.py", "bundled/README.md")
    with open(folder, encoding="utf-8") as file:
        assert f"`{name}`" in file.read()
    assert len(topology.text(name)) < 30_000


def test_p4d_has_four_switches_with_two_gpus_and_a_card():
    """Its file says so in words: "2 GPUs and 1 NIC behind a PCIe switch"."""
    p4d = topology.find("p4d")
    assert [p4d.nearest(gpu) for gpu in p4d.gpus] == [(f"NIC{g // 2}",) for g in range(8)]
    assert {p4d.path(g, n) for g in p4d.gpus for n in p4d.nearest(g)} == {"PIX"}
    assert p4d.path("GPU0", "GPU2") == "PHB"
    assert p4d.path("GPU0", "GPU4") == "SYS"


def test_ndv4_numbers_its_gpus_by_bus_and_not_by_cpu():
    ndv4 = topology.find("ndv4")
    assert [ndv4.ways[g][-1] for g in ndv4.gpus] == [f"CPU{c}" for c in (1, 1, 0, 0, 3, 3, 2, 2)]
    assert [ndv4.nearest(g) for g in ndv4.gpus[:2]] == [("NIC0", "NIC1")] * 2


def test_a_virtual_machine_with_one_gpu_is_read_from_what_nccl_and_the_driver_said():
    """NCCL counts the loopback as a card, and knows no number of the CPU; the driver knows no card."""
    nccl, driver = topology.find("h200-one.xml"), topology.find("h200-one.txt")
    assert (nccl.gpus, nccl.cards, nccl.cpus) == (("GPU0",), {"NIC0": "lo"}, ("CPU?",))
    assert nccl.path("GPU0", "NIC0") == "PHB", "as NCCL's own log has it"
    assert not nccl.direct("GPU0")
    assert (driver.gpus, driver.nics, driver.cpus) == (("GPU0",), (), ("CPU0",))
    assert repr(driver) == "one H200, by the driver: 1 GPU, 0 NICs, 1 CPU\nCPU0: GPU0", "no switch, so no word of one"


def test_a_dump_has_nvlinks_cards_and_numbers():
    hgx = topology.find("hgx")
    assert hgx.path("GPU0", "GPU7") == "NV18"  # 4 + 5 + 5 + 4 links to four NVSwitches
    assert hgx.switched
    assert hgx.cards["NIC3"] == "mlx5_3"
    ncv4 = topology.find("ncv4")
    assert not ncv4.nvlinks, "the links of these GPUs lead to themselves"
    assert ncv4.path("GPU0", "GPU1") == "SYS"
    assert ncv4.path("GPU0", "NIC0") == "PHB"
    assert not ncv4.direct("GPU0")


def test_nvlinks_between_two_gpus_are_counted_without_a_switch():
    gpu = '<pci busid="{0}" class="0x030200"><gpu dev="{1}"><nvlink target="{2}" count="2"/></gpu></pci>'
    text = f"<system><cpu numaid='0'>{gpu.format('a', 0, 'b')}{gpu.format('b', 1, 'a')}</cpu></system>"
    server = topology.read(text)
    assert server.path("GPU0", "GPU1") == "NV2"
    assert not server.switched


def test_the_published_matrix_is_read_as_it_stands():
    h100 = topology.find("h100-1453")
    rows = [line.split() for line in topology.text("h100-1453").splitlines()]
    for device, *paths in rows[1:]:
        for other, path in zip(rows[0][:17], paths, strict=False):  # what follows is the CPU's
            if device != other:
                assert h100.path(device, other) == path
    assert [h100.nearest(g)[0] for g in h100.gpus] == [f"NIC{8 - g}" for g in range(8)]
    assert h100.switched


def test_devices_joined_by_pix_share_a_switch_also_by_way_of_a_third():
    v100 = topology.find("v100")
    assert ["GPU2", "GPU3", "mlx5_0", "mlx5_1"] in [d for tree in v100.below("CPU0").values() for d in tree.values()]
    assert [g for g in v100.gpus if v100.direct(g)] == ["GPU2", "GPU3"]
    assert not v100.switched


MATRIX = """\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tPHB\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tPHB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def test_colours_and_legends_of_nvidia_smi_are_understood():
    server = topology.read(MATRIX)
    assert server.gpus == ("GPU0", "GPU1")
    assert server.cards == {"NIC0": "mlx5_0"}
    assert server.ways["GPU1"] == ("CPU1",)
    assert server.ways["NIC0"] == ("CPU0",)


def met(name: str):
    """A topology of the corpus."""
    return topology.read(next(CORPUS.glob(f"*/{name}.[tx]*")).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "a", "b", "path"),
    [
        ("soc", "GPU0", "GPU2", "SYS"),
        ("psb", "GPU0", "GPU1", "PIX"),
        ("upper-switches", "GPU0", "NIC0", "PXB"),
        ("upper-switches", "GPU0", "NIC1", "PHB"),
        ("rccl-mi300", "GPU0", "GPU1", "XGMI1"),
        ("rccl-mi300", "GPU0", "NIC0", "PXB"),
        ("two-hosts", "GPU0@host0", "GPU0@host1", "NV18"),
        ("two-hosts", "GPU0@host0", "NIC0@host1", "NET"),
        ("three-hosts", "GPU0@host0", "NIC0@host0", "P2C"),  # NVLink-C2C to the CPU, PCIe to the card
        ("three-hosts", "GPU0@host0", "NIC1@host0", "SYS"),
        ("nvlink-to-a-gpu-that-is-hidden", "GPU0", "GPU1", "PHB"),
        ("power9", "GPU0", "GPU1", "NV2"),
        ("data-direct-and-dpu", "GPU0", "NIC1", "PIX"),
        ("two-hosts-by-pdsh", "GPU0", "GPU1", "SYS"),
    ],
)
def test_a_path_is_what_the_text_says(name, a, b, path):
    server = met(name)
    assert server.path(a, b) == server.path(b, a) == path
    assert level(path) <= level("NET")


@pytest.mark.parametrize(
    ("name", "gpu", "direct"),
    [("upper-switches", "GPU0", True), ("three-hosts", "GPU0@host0", True), ("gb10-c2c", "GPU0", False)],
)
def test_direct_heeds_c2c_and_what_the_file_denies(name, gpu, direct):
    """NCCL_NET_GDR_C2C is 1 by default (paths.cc), and gdr="0" says that a device cannot."""
    assert met(name).direct(gpu) == direct


def test_a_path_whose_rows_are_missing_is_not_guessed():
    with pytest.raises(LabError, match="no row of NIC2 or NIC3"):
        topology.find("h100-1453").path("NIC2", "NIC3")


@pytest.mark.parametrize(
    "file", sorted(CORPUS.glob("*o/*.txt")) + sorted(CORPUS.glob("xml/*.xml")), ids=lambda f: f.stem
)
def test_a_switch_is_never_taken_for_a_cpu(file):
    try:
        server = topology.read(file.read_text(encoding="utf-8"))
    except LabError:
        return
    assert {*server.ways} == {*server.gpus, *server.nics}
    for *switches, cpu in server.ways.values():
        assert cpu.startswith("CPU") or cpu == ""
        assert not any(switch.startswith("CPU") for switch in switches)


@given(WAYS, WAYS, st.sampled_from("01"), st.sampled_from("01"))
def test_a_path_is_symmetric_and_never_nearer_through_more(a, b, cpu, other):
    mine, theirs = (*a, f"cpu{cpu}"), (*b, f"cpu{other}")
    path = by_pcie(mine, theirs)
    assert path == by_pcie(theirs, mine)
    assert (path == "SYS") == (cpu != other)
    assert level(by_pcie(("extra", *mine), ("more", *theirs))) >= level(path)


def test_levels_are_in_nccls_order():
    """src/graph/topo.h: PATH_NVL 1, C2C 3, PIX 4, PXB 5, P2C 6, PXN 7, PHB 8, SYS 9."""
    words = ["NV1", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"]
    assert [level(w) for w in words] == sorted(level(w) for w in words)
    assert len({level(w) for w in words}) == len(words)


def test_every_bundled_xml_is_one():
    for name in topology.BUNDLED:
        if name.endswith(".xml"):
            assert ET.fromstring(topology.text(name)).tag == "system"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "There is no matrix"),
        ("<system", "This is not XML"),
        ("<graphs/>", "a graph of NCCL .* Give the file of NCCL_TOPO_DUMP_FILE"),
        ('<system><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu></system>', "names no GPU"),
        ("\tGPU0\tGPU1\nGPU0\t X \n", "Paste it whole"),
    ],
)
def test_what_is_no_topology_is_refused_with_what_to_do(text, says):
    with pytest.raises(LabError, match=says):
        topology.read(text)


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(LabError, match="It has GPU0"):
        topology.find("p4d").path("GPU0", "NIC9")
    with pytest.raises(LabError, match=r"p4d-24xl-topo\.xml"):
        topology.find("nowhere")
    with pytest.raises(LabError, match="NODE"):
        level("FAR")
