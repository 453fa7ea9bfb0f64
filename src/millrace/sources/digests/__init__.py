"""Digests: files that say where the items of a data set lie, and what the hash of each item's content is."""
