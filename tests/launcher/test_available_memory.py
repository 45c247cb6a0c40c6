"""The memory that a new program may use: what the kernel reports, and what a container's limit leaves of it."""

import pytest

from outerloop.launcher.available_memory import available_bytes

V2 = {"memory.max": "3000", "memory.current": "1200", "memory.stat": "anon 700\ninactive_file 200\n"}
V1 = {
    "memory/memory.limit_in_bytes": "5000",
    "memory/memory.usage_in_bytes": "1000",
    "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 9000 * 1024),
        (V2, 3000 - 1200 + 200),
        (V1, 5000 - 1000 + 300),
        ({**V2, "memory.max": "max"}, 9000 * 1024),
        ({**V2, "memory.current": "4000"}, 0),
        ({**V2, "memory.max": str(10**15)}, 9000 * 1024),
        ({"memory.max": "3000"}, 9000 * 1024),
    ],
)
def test_a_containers_limit_counts(files, free, tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  99999 kB\nMemAvailable:   9000 kB\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert available_bytes(meminfo, tmp_path) == free


@pytest.mark.parametrize("text", [None, "MemTotal: 1 kB\n"])
def test_a_system_that_does_not_report_it(text, tmp_path):
    if text:
        (tmp_path / "meminfo").write_text(text)
    assert available_bytes(tmp_path / "meminfo", tmp_path) is None
