"""Servers, NCCL's logs and single steps that draw themselves: what they say in words and in the picture."""

from __future__ import annotations

import re
import xml.dom.minidom

import pytest

from labkit import draw
from labkit.errors import LabError
from labkit.theory import nccl_log, schedules, topology


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
