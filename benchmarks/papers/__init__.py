"""Experiments of the papers that millrace comes from, one command each."""
