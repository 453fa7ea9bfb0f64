"""What millrace costs and what its peers cost, one file a question: ``python -m benchmarks.decode --help``."""
