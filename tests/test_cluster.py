"""Clusters as people write them, cards as torch names them, and a source for every value of the catalogue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from estimators import cluster as module
from estimators.cluster import FAMILIES, Card, Cluster, Gpu, gpu_fact, gpu_sources, gpus, parse_cluster
from estimators.errors import InputError, UnknownName
from estimators.units import GIB, MIB

SPECS = [
    # text, nodes, GPUs per node, card
    ("A10", 1, 1, "a10"), ("1xA10", 1, 1, "a10"), ("4xA10", 1, 4, "a10"), ("8xA100-80GB", 1, 8, "a100-80gb-sxm4"),
    ("2x8xH100", 2, 8, "h100-sxm5"), ("8*A100-40GB", 1, 8, "a100-40gb-sxm4"), (" 2 x 8 X h200 ", 2, 8, "h200"),
    ("4×L4", 1, 4, "l4"), ("4x4090", 1, 4, "rtx-4090"), ("2x4x3090", 2, 4, "rtx-3090"), ("16xMI300X", 1, 16, "mi300x"),
    ("65536x65536xT4", 65536, 65536, "t4"), ("08xA10G", 1, 8, "a10g"),
]  # fmt: skip

ALIASES = [
    ("A100", "a100-80gb-sxm4"), ("A100-40GB", "a100-40gb-sxm4"), ("a100 40g", "a100-40gb-sxm4"),
    ("A100-80", "a100-80gb-sxm4"), ("A100-SXM-80GB", "a100-80gb-sxm4"), ("A100 PCIe", "a100-80gb-pcie"),
    ("A100-PCIE-40GB", "a100-40gb-pcie"), ("4090", "rtx-4090"), ("RTX4090", "rtx-4090"), ("rtx 4090", "rtx-4090"),
    ("RTX-4090", "rtx-4090"), ("GeForce RTX 4090", "rtx-4090"), ("H100", "h100-sxm5"), ("H100-SXM", "h100-sxm5"),
    ("h100_sxm5_80gb", "h100-sxm5"), ("H100 PCIe", "h100-pcie"), ("H100-NVL", "h100-nvl"),
    ("H100-96GB", "h100-96gb-sxm5"),
    ("v100", "v100-16gb-sxm2"), ("V100-32GB", "v100-32gb-sxm2"), ("GH200", "gh200"), ("H200-141GB", "h200"),
    ("mi300x", "mi300x"), ("MI250X", "mi250x-gcd"), ("A800-80GB", "a800-80gb"), ("RTX A6000", "rtx-a6000"),
    ("A6000", "rtx-a6000"), ("RTX 6000 Ada", "rtx-6000-ada"), ("RTX-A5000", "rtx-a5000"), ("TITAN-RTX", "titan-rtx"),
    ("RTX-PRO-6000", "rtx-pro-6000-blackwell"), ("2080ti", "rtx-2080-ti"), ("Gaudi 3", "gaudi3"), ("B200", "b200"),
    ("Ascend 910B", "ascend-910b"), ("a100-80gb-sxm4", "a100-80gb-sxm4"),
]  # fmt: skip

# Names that torch.cuda.get_device_name was seen to return, beside those that stand in the catalogue itself.
DEVICE_NAMES = [
    ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm4"), ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm4"),
    ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"), ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"), ("NVIDIA A10", "a10"),
    ("NVIDIA A10G", "a10g"), ("NVIDIA H100 80GB HBM3", "h100-sxm5"), ("NVIDIA H100 PCIe", "h100-pcie"),
    ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA H200", "h200"), ("NVIDIA H20", "h20"), ("NVIDIA L4", "l4"),
    ("NVIDIA L40", "l40"), ("NVIDIA L40S", "l40s"), ("NVIDIA GH200 480GB", "gh200"), ("Tesla T4", "t4"),
    ("Tesla V100-SXM2-16GB", "v100-16gb-sxm2"), ("Tesla V100-SXM2-32GB", "v100-32gb-sxm2"),
    ("Tesla V100-SXM2-32GB-LS", "v100-32gb-sxm2"), ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
    ("NVIDIA GeForce RTX 3090", "rtx-3090"), ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
    ("NVIDIA RTX A6000", "rtx-a6000"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("NVIDIA B200", "b200"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell"), ("AMD Instinct MI300X", "mi300x"),
    ("AMD Instinct MI325X", "mi325x"),
]  # fmt: skip

# Real cards that the catalogue lacks and whose names begin like one that it has.
NOT_IN_CATALOGUE = [
    "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100X",
    "NVIDIA A10M", "NVIDIA RTX A4000", "NVIDIA A16", "NVIDIA A2", "Tesla T40 24GB", "NVIDIA L20", "NVIDIA H100 CNX",
    "Quadro RTX 6000", "NVIDIA H20-3e", "NVIDIA RTX 4000 Ada Generation", "AMD Instinct MI300A", "A1000", "A4000",
    "L400",    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "B100", "P100",
]  # fmt: skip


@pytest.mark.parametrize(("text", "nodes", "gpus_per_node", "card"), SPECS)
def test_specs(text: str, nodes: int, gpus_per_node: int, card: str) -> None:
    found = parse_cluster(text)
    assert (found.nodes, found.gpus_per_node, found.gpu.id) == (nodes, gpus_per_node, card)
    assert found.ranks == nodes * gpus_per_node


@pytest.mark.parametrize(("name", "card"), ALIASES + DEVICE_NAMES)
def test_names_people_and_torch_use(name: str, card: str) -> None:
    assert parse_cluster(name).gpu.id == card
    assert parse_cluster(f"2x8x{name}").gpu.id == card


@pytest.mark.parametrize("record", gpus(), ids=lambda r: r["id"])
def test_every_card_is_found_by_its_id_and_its_device_names(record: dict[str, Any]) -> None:
    for name in (record["id"], *record["torch_device_names"]):
        assert parse_cluster(name).gpu.id == record["id"]


@pytest.mark.parametrize("name", NOT_IN_CATALOGUE)
def test_a_card_is_never_taken_for_another(name: str) -> None:
    with pytest.raises(UnknownName, match="--gpu-memory"):
        parse_cluster(name)
    assert parse_cluster(name, gpu_memory="10GiB").gpu == Gpu(name.lower(), name, 10 * GIB)


def test_families_name_every_card_once_or_more() -> None:
    assert {i for ids in FAMILIES.values() for i in ids} == {r["id"] for r in gpus()}


def test_what_was_assumed_is_said() -> None:
    assert parse_cluster("A100").notes == ("A100 is taken as the 80 GB card; write A100-40GB for another",)
    assert "16 GB card; write V100-32GB" in parse_cluster("v100").notes[0]
    assert parse_cluster("A100-80GB").notes == parse_cluster("4xA10").notes == ()
    assert "no measured total" in parse_cluster("gaudi2").notes[0]
    assert "nvidia-smi" in parse_cluster("RTX PRO 6000").notes[0]
    assert "one log" in parse_cluster("B300").notes[0]


def test_capacity_is_the_smallest_total_seen() -> None:
    assert parse_cluster("A10").gpu.memory_bytes == int(22.06 * GIB)
    assert parse_cluster("A6000").gpu.memory_bytes == int(44.43 * GIB)  # ECC on
    assert parse_cluster("MI210").gpu.memory_bytes == 64 * 10**9
    assert parse_cluster("RTX PRO 6000").gpu.memory_bytes == 97887 * MIB


def test_a_card_outside_the_catalogue_needs_only_its_memory() -> None:
    found = parse_cluster("4xFoo 9000", gpu_memory="48GB")
    assert found.gpu == Gpu("foo 9000", "Foo 9000", 48 * 10**9)
    assert found.gpu.compute_capability is None and found.gpu.bf16 is None
    assert "not in the catalogue" in found.notes[0]


def test_given_memory_overrides_the_catalogue() -> None:
    found = parse_cluster("4xA100", gpu_memory="40GiB")
    assert (found.gpu.id, found.gpu.memory_bytes) == ("a100-80gb-sxm4", 40 * GIB)
    assert found.notes == ("a100-80gb-sxm4: memory is as given, not the catalogue's",)


@pytest.mark.parametrize("text", ["0xA10", "-1xA10", "1.5xA10", "65537xA10", "2x0xA10", "1_0xA10", "9" * 100 + "xA10"])
def test_counts_are_whole_and_in_range(text: str) -> None:
    with pytest.raises(InputError, match="give a whole number from 1 to 65536"):
        parse_cluster(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no card"), ("  ", "names no card"), ("4x", "names no card"), ("2x2x2xA10", "has 3 numbers"),
        ("A" * 10**6, "too long"), ("4x" * 10**6, "too long"), ("A100-48GB", "the catalogue has A100 with 40 GB"),
        ("H20-141GB", "the catalogue has H20 with 96 GB"), ("L4 PCIe 48GB", "the catalogue has L4 with 24 GB"),
    ],
)  # fmt: skip
def test_errors_say_what_to_write(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_cluster(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [None, 4, ["4xA10"], b"4xA10"])
def test_a_cluster_is_text(value: Any) -> None:
    with pytest.raises(InputError, match="is not text"):
        parse_cluster(value)


def test_unknown_cards_come_with_suggestions() -> None:
    with pytest.raises(UnknownName, match="did you mean .*mi300x.*--gpu-memory.*dist-advisor gpus"):
        parse_cluster("8xMI300")
    with pytest.raises(UnknownName, match="unknown GPU 'four A10s'"):
        parse_cluster("four A10s")


def test_facts_of_hosts_and_links() -> None:
    found = parse_cluster(
        "2x8xH100", host_memory="512GB", nvme="4TB", network="400", interconnect="NVLink", price="2.5"
    )  # fmt: skip
    assert (found.host_bytes, found.nvme_bytes, found.network_bits_per_s) == (512 * 10**9, 4 * 10**12, 400e9)
    assert (found.interconnect, found.price_per_gpu_hour) == ("nvlink", 2.5)
    assert parse_cluster("A10", network="50GB/s").network_bits_per_s == 400e9
    assert parse_cluster("A10", network="100 Gbit/s").network_bits_per_s == 100e9
    assert parse_cluster("A10", network=3.2).network_bits_per_s == 3.2e9


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"host_memory": "lots"}, "host memory: 'lots' is not a size"), ({"nvme": "0"}, "NVMe: '0' is out of range"),
        ({"nvme": "9" * 10**6}, "NVMe: .* is not a size"), ({"host_memory": 10**6000}, "host memory: .* is not a size"),
        ({"gpu_memory": "-4GB"}, "GPU memory: '-4GB' is not a size"), ({"host_memory": True}, "is not a size"),
        ({"network": "fast"}, "network: 'fast' is not a speed"), ({"network": 0}, "network: '0' is not a speed"),
        ({"network": "1e30"}, "is not a speed"), ({"price": "free"}, "price: 'free' is not a price"),
        ({"price": -1}, "price: '-1' is not a price"), ({"price": "nan"}, "price: 'nan' is not a price"),
        ({"interconnect": "nvlnk"}, "unknown interconnect 'nvlnk'; did you mean nvlink"),
    ],
)  # fmt: skip
def test_facts_that_cannot_be_used(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_cluster("4xA10", **facts)


@pytest.mark.parametrize("name", ["host_memory", "nvme", "gpu_memory"])
def test_a_number_that_cannot_be_bytes_asks_for_its_unit(name: str) -> None:
    with pytest.raises(InputError, match="2000 would be 2,000 bytes; give the unit: 2000GB"):
        parse_cluster("2xA10", **{name: "2000"})


def test_equal_specs_are_one_object() -> None:
    assert parse_cluster("4xA10") is parse_cluster(" 4 x a10 ")
    assert parse_cluster("A10", host_memory="1TB") is parse_cluster("1xA10", host_memory=10**12)
    assert parse_cluster("4xA10") is not parse_cluster("8xA10")
    assert len({parse_cluster("4xA10"), parse_cluster("4*A10")}) == 1


def test_links_inside_a_node() -> None:
    assert all(parse_cluster(text).has_nvlink for text in ("8xA100", "8xH100", "8xMI300X"))
    assert not any(parse_cluster(text).has_nvlink for text in ("4xA10", "2x3090", "8xH100 PCIe"))
    assert not parse_cluster("8xH100", interconnect="pcie").has_nvlink
    assert parse_cluster("2x3090", interconnect="nvlink").has_nvlink
    assert not Cluster(Gpu("x", "x", GIB)).has_nvlink


@given(st.text(max_size=40))
@example("4x" + "0" * 150 + "1xA10")
@example("٤xA10")
@example("4xA10\n")
@example("²xA10")
def test_any_text_is_a_cluster_or_an_input_error(text: str) -> None:
    for memory in (None, "24GB"):
        try:
            found = parse_cluster(text, gpu_memory=memory)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert found.ranks >= 1 and found.gpu.memory_bytes > 0


@given(st.sampled_from(sorted(FAMILIES)), st.text("abcdegimnprstxv0123456789- ", max_size=8))
def test_a_family_with_any_ending_is_itself_longer_or_unknown(family: str, ending: str) -> None:
    try:
        found = parse_cluster(family + ending)
    except InputError:
        return
    squashed = re.sub("[^a-z0-9]", "", family + ending)
    assert found.gpu.id in {i for f, ids in FAMILIES.items() if squashed.startswith(f) for i in ids} | {found.gpu.id}
    longest = max((f for f in FAMILIES if squashed.startswith(f)), key=len, default=family)
    assert found.gpu.id in FAMILIES[longest] or found.gpu.id in FAMILIES[family]


# --- the catalogue


def values(node: Any, path: str) -> Iterator[tuple[str, Any, list[str]]]:
    """Every value of a record with its sources."""
    if isinstance(node, dict):
        sources = [*node.get("source", []), *node.get("bandwidth_source", [])]
        if "source" in node:
            for key in set(node) - {"source", "bandwidth_source", "note"}:
                yield f"{path}.{key}", node[key], sources
        for key, below in node.items():
            yield from values(below, f"{path}.{key}")


@pytest.mark.parametrize("record", gpus(), ids=lambda r: r["id"])
def test_every_value_has_a_source(record: dict[str, Any]) -> None:
    known = gpu_sources()
    for path, value, sources in values(record, record["id"]):
        assert value is None or sources, f"{path} = {value} has no source"
        assert set(sources) <= set(known), f"{path}: {sources}"


def test_every_record_has_the_same_keys_and_sound_totals() -> None:
    keys = set(gpus()[0])
    for record in gpus():
        assert set(record) == keys
        seen = record["torch_total_memory_gib"]
        if seen["value"] is not None:
            assert seen["min_seen"] <= seen["value"] <= seen["max_seen"]
            assert 0.9 < seen["max_seen"] / record["memory_marketing_gb"] < 1.0
    assert len({r["id"] for r in gpus()}) == len(gpus()) >= 38


def test_the_index_repeats_the_catalogue() -> None:
    rows = json.loads((Path(module.DATA) / "gpu_index.json").read_text(encoding="utf-8"))
    assert [Card(*row) for row in rows] == [Card.of(record) for record in gpus()]


def test_facts_by_path() -> None:
    assert gpu_fact("a10", "dense_tflops.bf16") == 125
    assert gpu_fact(parse_cluster("H100").gpu, "pcie.gen") == 5
    assert gpu_fact("t4", "dense_tflops.bf16") is None
    assert gpu_fact("a10", "no.such.fact") is gpu_fact("no such card", "vendor") is None
