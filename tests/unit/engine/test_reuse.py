"""What ``cache()`` keeps in process."""

from zlib import crc32

from millrace import Dataset


def test_blocks_of_a_folder_are_checked_once_and_not_each_epoch(tmp_path, monkeypatch):
    dataset = Dataset.range(1000).cache(str(tmp_path))
    assert list(dataset) == list(range(1000))
    checked = []

    def counted(data):
        checked.append(data)
        return crc32(data)

    assert list(dataset) == list(range(1000))
    monkeypatch.setattr("millrace.blocks.reader.crc32", counted)
    assert list(dataset) == list(range(1000))
    assert not checked
