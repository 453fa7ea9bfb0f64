"""Small data sets on disk, in every format; each element says which it is."""

import io
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.dataset import Dataset
from millrace.sources.crc32c import mask

FILES = 7
PER_FILE = 60
COUNT = FILES * PER_FILE


@dataclass(frozen=True)
class Data:
    """Folder of the files: ``0.tfrecord`` to ``6.tfrecord`` and so on, and ``files/*.bin`` with an element each."""

    root: Path

    def paths(self, ending: str, count: int = FILES) -> list[str]:
        return [str(self.root / f"{number}.{ending}") for number in range(count)]

    @property
    def files(self) -> str:
        return str(self.root / "files" / "*.bin")


def text(number: int) -> bytes:
    """Element ``number``: its number, and as many more bytes as make its length vary."""
    return b"%d" % number + b"," * (number * 7 % 31)


def number_of(raw: bytes) -> int:
    """Which element these bytes are."""
    return int(raw.rstrip(b","))


def write_data(root: Path) -> Data:
    (root / "files").mkdir()
    for file in range(FILES):
        numbers = range(file * PER_FILE, (file + 1) * PER_FILE)
        (root / f"{file}.tfrecord").write_bytes(b"".join(_record(text(number)) for number in numbers))
        (root / f"{file}.tar").write_bytes(_tar([(f"{number:04d}.txt", text(number)) for number in numbers]))
        table = pa.table({"number": list(numbers), "name": [text(number) for number in numbers]})
        pq.write_table(table, root / f"{file}.parquet", row_group_size=25)
        (root / f"{file}.txt").write_bytes(b"".join(text(number) + b"\n" for number in numbers))
        rows = [b"%d,%b\n" % (number, text(number).replace(b",", b".")) for number in numbers]
        (root / f"{file}.csv").write_bytes(b"".join([b"number,name\n", *rows]))
        (root / f"{file}.fixed").write_bytes(b"".join(b"%05d" % number for number in numbers))
        for number in numbers:
            (root / "files" / f"{number:04d}.bin").write_bytes(text(number))
    Dataset.range(COUNT).save(root / "saved")
    return Data(root)


def _record(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return b"".join([length, _masked(length), record, _masked(record)])


def _masked(raw: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return struct.pack("<I", mask(crc ^ 0xFFFFFFFF))


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, raw in members:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return file.getvalue()


class Numbers:
    """A map-style dataset: whatever has a length and items."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"number": index, "square": index * index}
