"""docs/DATA.md names all data that ships, with its size."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def described():
    """Files and bytes of each row; patterns behind the first are in its folder."""
    rows = re.findall(r"^\| (`[^|]*`) \| ([\d,]+) \|", (ROOT / "docs" / "DATA.md").read_text(), re.MULTILINE)
    for cell, size in rows:
        first, *others = re.findall(r"`([^`]+)`", cell)
        patterns = [first, *(str(Path(first).with_name(other)) for other in others)]
        yield [path for pattern in patterns for path in ROOT.glob(pattern)], int(size.replace(",", ""))


def test_all_data_is_described_once_with_its_size():
    rows = list(described())
    files = [path for paths, _ in rows for path in paths]
    shipped = [p for package in ("entmtp_env", "policies") for p in (ROOT / package / "data").rglob("*.*")]
    assert sorted(files) == sorted(shipped)
    assert [sum(path.stat().st_size for path in paths) for paths, _ in rows] == [size for _, size in rows]
