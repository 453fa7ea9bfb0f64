"""Cache servers: processes that keep stored bytes on a local disk, for the workers of all jobs."""
