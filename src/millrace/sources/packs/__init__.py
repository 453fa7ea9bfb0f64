"""Packs: folders of tar shards, as WebDataset reads them, with an index of their samples."""
