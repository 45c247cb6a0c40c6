"""The memory that a new program may use: what the kernel reports, and what the limits of cgroups leave of it."""

import pytest

from outerloop.launcher.available_memory import available_bytes

V2 = {"memory.max": "3000", "memory.current": "1200", "memory.stat": "anon 700\ninactive_file 200\n"}
V1 = {
    "memory.limit_in_bytes": "5000",
    "memory.usage_in_bytes": "1000",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 9000 * 1024),
        (V2, 3000 - 1200 + 200),
        ({f"memory/{name}": text for name, text in V1.items()}, 5000 - 1000 + 300),
        ({**V2, "memory.max": "max"}, 9000 * 1024),
        ({**V2, "memory.current": "4000"}, 0),
        ({**V2, "memory.max": str(10**15)}, 9000 * 1024),
        ({"memory.max": "3000"}, 9000 * 1024),
    ],
)
def test_a_containers_limit_counts(files, free, tmp_path):
    assert available_in(tmp_path, files) == free


@pytest.mark.parametrize(
    ("memberships", "folders", "free"),
    [
        ("0::/job/step", {"job/step": V2}, 2000),
        ("0::/job/step", {"job": V2, "job/step": {"memory.max": "max"}}, 2000),
        ("0::/job/step", {"job": V2 | {"memory.max": "2500"}, "job/step": V2, "other": V2 | {"memory.max": "0"}}, 1500),
        ("0::/job:1/step", {"job:1": V2}, 2000),
        ("0::/../job", {"": V2}, 2000),
        (
            "9:memory:/job/step\n0::/",
            {"memory/job": V1, "memory/job/step": V1 | {"memory.limit_in_bytes": "4000"}},
            3300,
        ),
        ("9:memory:/docker/0a1b", {"memory": V1}, 4300),
        ("9:cpu,cpuacct:/job", {"memory/job": V1, "job": V2}, 9000 * 1024),
    ],
)
def test_the_lowest_limit_on_the_path_of_the_own_cgroup_counts(memberships, folders, free, tmp_path):
    files = {f"{folder}/{name}": text for folder, files in folders.items() for name, text in files.items()}
    assert available_in(tmp_path, files, memberships) == free


def available_in(tmp_path, files, memberships=""):
    """The memory on a machine with these files in its cgroup tree and this /proc/self/cgroup."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  99999 kB\nMemAvailable:   9000 kB\n")
    for name, text in files.items():
        file = tmp_path / "tree" / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (tmp_path / "self").write_text(memberships)
    return available_bytes(meminfo, tmp_path / "tree", tmp_path / "self")


@pytest.mark.parametrize("text", [None, "MemTotal: 1 kB\n"])
def test_a_system_that_does_not_report_it(text, tmp_path):
    if text:
        (tmp_path / "meminfo").write_text(text)
    assert available_bytes(tmp_path / "meminfo", tmp_path) is None
