"""Servers, NCCL's logs and single steps that draw themselves: what they say in words and in the picture."""

from __future__ import annotations

import re
import xml.dom.minidom
from pathlib import Path

import pytest
from matplotlib.patches import PathPatch, Rectangle

from labkit import draw
from labkit.floor.errors import LabError
from labkit.plot.sheet import extent
from workbook.tools import nccl_log, schedules, topology
from workbook.tools.topology import plot


def met(name: str):
    return topology.read((Path(__file__).parents[1] / "corpus" / name).read_text(encoding="utf-8"))


def texts(drawn) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn.svg.decode())


@pytest.mark.parametrize("name", list(topology.BUNDLED))
def test_every_gpu_and_card_is_in_the_picture_and_its_source(name):
    server = topology.find(name)
    drawn = draw(server)
    xml.dom.minidom.parseString(drawn.svg)
    said = texts(drawn)
    for gpu in server.gpus:
        assert gpu.removeprefix("GPU") in said
    for nic in server.nics:
        assert nic.replace("mlx5_", "mlx ") in said
    assert any(server.source in text for text in said)


def test_a_path_is_said_and_drawn_bold():
    p4d = topology.find("p4d")
    drawn = draw(p4d, between=("GPU0", "NIC2"))
    assert repr(drawn).splitlines()[-1] == "GPU0 to NIC2: SYS, over the link between two CPUs."
    assert drawn.svg != draw(p4d).svg
    for nic, cpus, switches in (("NIC2", ["CPU0", "CPU1"], 2), ("NIC1", ["CPU0"], 2), ("NIC0", [], 1)):
        picture = draw(p4d, between=("GPU0", nic))._picture()
        below = [s for cpu in picture.cpus for tree in cpu.trees for s in tree.switches]
        assert [cpu.name for cpu in picture.cpus if cpu.marked] == cpus
        assert sum(s.marked for s in below) == switches
        assert [d.name for s in below for d in s.devices if d.marked] == ["GPU0", nic]


def test_what_meets_below_the_cpu_is_drawn_below_an_upper_switch_and_marked_no_further():
    for name, upper, lower in (
        ("topo/pxb.txt", "PCIe switches", [""]),
        ("xml/upper-switches.xml", "PCIe", ["PCIe"] * 2),
    ):
        (cpu,) = draw(met(name), between=("GPU0", "NIC0"))._picture().cpus
        asked, other = cpu.trees
        assert [asked.name, other.name] == [upper] * 2
        assert [s.name for s in asked.switches] == lower
        assert (asked.marked, asked.up, cpu.marked, other.marked) == (True, False, False, False)


def test_a_switch_that_no_cpu_is_known_for_stands_elsewhere():
    cpus = draw(met("topo/nics-below-a-switch-of-their-own.txt"))._picture().cpus
    last = cpus[-1]
    assert [cpu.name for cpu in cpus] == ["CPU0", "CPU1", ""]
    assert [[d.name for d in s.devices] for tree in last.trees for s in tree.switches] == [["NIC2", "NIC3"]]


@pytest.mark.parametrize(("name", "joined"), [("xml/two-hosts.xml", 0), ("topo/numa-nodes-3-and-1.txt", 1)])
def test_only_cpus_of_one_host_are_joined(name, joined):
    picture = draw(met(name))._picture()
    ax = plot.draw(picture)
    ends = [{y for _, y in line.get_path().vertices} for line in ax.patches if isinstance(line, PathPatch)]
    assert sum(len(heights) == 1 for heights in ends) == joined


def test_a_path_over_two_cpus_marks_no_cpu_of_another_host():
    drawn = draw(met("xml/three-hosts.xml"), between=("GPU0@host0", "NIC1@host0"))
    ax = plot.draw(drawn._picture())
    lines = [p for p in ax.patches if isinstance(p, PathPatch) and len({y for _, y in p.get_path().vertices}) == 1]
    assert [line.get_linewidth() > 3 for line in lines] == [True, False]


def test_a_long_name_stays_in_its_box():
    picture = draw(met("topo/cards-by-other-names.txt"))._picture()
    ax = plot.draw(picture)
    boxes = {box.get_x() + box.get_width() / 2: box.get_width() for box in ax.patches if isinstance(box, Rectangle)}
    words = {word.get_text(): word.get_position()[0] for word in ax.texts}
    for name in ("bnxt_re0", "roceP1s", "rdmap16s27", "irdma0"):
        wide = next(wide for middle, wide in boxes.items() if abs(middle - words[name]) < 1e-6 and wide < 3)
        assert extent(name, 7, bold=True) < wide


def test_doubts_and_what_was_left_out_are_in_the_picture():
    said = " ".join(texts(draw(met("topo/soc.txt"))))
    assert "have the same CPU affinity, 0-23, but SYS" in said
    assert "GPU7" in " ".join(texts(draw(topology.find("v100"))))


def test_links_of_amd_are_called_by_their_name():
    drawn = draw(met("xml/rccl-mi300.xml"), between=("GPU0", "GPU1"))
    assert "xGMI: XGMI1, between all pairs" in texts(drawn)
    assert repr(drawn).endswith("GPU0 to GPU1: XGMI1, 1 xGMI link.")


def test_nvlink_is_drawn_where_it_is_known_and_said_to_be_missing_where_not():
    assert "NVSwitch, NV18" in texts(draw(topology.find("hgx")))
    assert "NVLink: NV1 or NV2, between some pairs" in texts(draw(topology.find("v100")))
    assert "NVLink is not in this file." in texts(draw(topology.find("p4d")))


def test_a_device_that_is_near_nobody_stands_elsewhere():
    assert "elsewhere" in texts(draw(topology.find("h100-1453")))


def test_a_logs_rings_are_drawn_once_for_the_channels_that_share_them():
    drawn = draw(nccl_log.find("a100-1412"))
    said = texts(drawn)
    assert "ring of channels 0, 4" in said
    assert said.count("2 arrows from node to node") == 4
    assert "8 lines read; 2 of other kinds skipped." in drawn._repr_html_()


def test_trees_are_drawn_where_all_ranks_tell_their_places():
    lines = ["NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0"]
    places = ("1/2/-1->0->-1", "-1/-1/-1->1->0", "3/-1/-1->2->0", "-1/-1/-1->3->2")
    lines += [f"NCCL INFO Trees [0] {place} [1] {place}" for place in places]
    drawn = draw(nccl_log.read("\n".join(lines)))
    assert {"tree of channels 0, 1", "1 arrow from node to node"} <= set(texts(drawn))
    assert "Tree of channel 0: 1 below 0, 2 below 0, 3 below 2." in repr(drawn)


def test_a_log_without_a_whole_ring_is_told_in_words_alone():
    drawn = draw(nccl_log.find("p4d-64"))
    assert "<img" not in drawn._repr_html_()
    assert "card 0" in drawn._repr_html_()
    with pytest.raises(LabError, match="NCCL_DEBUG_SUBSYS=INIT,GRAPH"):
        _ = drawn.svg


@pytest.mark.parametrize("step", [1, 3, 4, 99])
def test_one_step_is_drawn_with_what_it_leaves(step):
    schedule = schedules.nvls("all_reduce", 4)
    drawn = draw(schedule, step=step)
    shown = min(step, 4)
    assert {f"step {shown} of 4", "after it"} <= set(texts(drawn))
    assert repr(drawn).splitlines()[1].startswith(f"step {shown} of 4: ")
    whole = repr(schedule).splitlines()[shown]
    assert repr(drawn).splitlines()[1].partition(": ")[2] == whole.partition(": ")[2]


def test_one_step_of_a_long_ring_still_shows_its_cells():
    drawn = draw(schedules.ring("all_reduce", 12), step=22)
    assert texts(drawn).count("12") > 12
    assert not any("only the first and the last" in text for text in texts(drawn))


def test_a_switch_has_a_row_and_a_name():
    assert {"rank 3", "switch"} <= set(texts(draw(schedules.nvls("all_reduce", 4))))
    assert {"switch 0", "switch 1"} <= set(texts(draw(schedules.nvls_tree("all_reduce", 2, 2))))
    assert "0→switch +0" in repr(schedules.collnet_direct("all_reduce", 2, 1))
